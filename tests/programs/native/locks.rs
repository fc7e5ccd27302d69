// Threads of std that wait for each other's locks, for good or only for long. rustc -O
// usage: locks SCENE; prints "ready" once all of them wait.
use std::hint::black_box;
use std::sync::{Arc, Barrier, Mutex, RwLock};
use std::time::Duration;

static FIRST: Mutex<u64> = Mutex::new(0);
static SECOND: Mutex<u64> = Mutex::new(0);

fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(100_000));
    }
}

#[inline(never)]
fn holds_and_wants(mine: &Mutex<u64>, other: &Mutex<u64>, all: &Barrier) {
    let mut held = mine.lock().unwrap();
    all.wait();
    *held += *black_box(other.lock().unwrap());
    black_box(&held);
}

#[inline(never)]
fn holds_and_wants_rw(mine: &RwLock<u64>, other: &RwLock<u64>, all: &Barrier) {
    let mut held = mine.write().unwrap();
    all.wait();
    *held += *black_box(other.read().unwrap());
    black_box(&held);
}

#[inline(never)]
fn holds(mine: &Mutex<u64>, all: &Barrier) {
    let held = mine.lock().unwrap();
    all.wait();
    black_box(&held);
    forever();
}

#[inline(never)]
fn wants(wanted: &Mutex<u64>, also: &Mutex<u64>, all: &Barrier) {
    all.wait();
    *black_box(wanted.lock().unwrap()) += 1;
    *black_box(also.lock().unwrap()) += 1;
}

fn main() {
    let scene = std::env::args().nth(1).unwrap();
    let locks: Vec<Arc<Mutex<u64>>> = (0..4).map(|_| Arc::new(Mutex::new(0))).collect();
    let rw: Vec<Arc<RwLock<u64>>> = (0..2).map(|_| Arc::new(RwLock::new(0))).collect();
    let mut main_holds = vec![];
    match scene.as_str() {
        "mutex" | "ring" => {
            let count = if scene == "mutex" { 2 } else { 3 };
            let all = Arc::new(Barrier::new(count));
            for number in 0..count {
                let (mine, other, all) = (locks[number].clone(), locks[(number + 1) % count].clone(), all.clone());
                std::thread::spawn(move || holds_and_wants(&mine, &other, &all));
            }
        }
        "rwlock" => {
            let all = Arc::new(Barrier::new(2));
            for number in 0..2 {
                let (mine, other, all) = (rw[number].clone(), rw[1 - number].clone(), all.clone());
                std::thread::spawn(move || holds_and_wants_rw(&mine, &other, &all));
            }
        }
        // Both locks are held by a third thread; the two that wait have references to both.
        "third" => {
            let all = Arc::new(Barrier::new(4));
            for number in 0..2 {
                let (lock, all) = (locks[number].clone(), all.clone());
                std::thread::spawn(move || holds(&lock, &all));
            }
            for number in 0..2 {
                let (wanted, also, all) = (locks[number].clone(), locks[1 - number].clone(), all.clone());
                std::thread::spawn(move || wants(&wanted, &also, &all));
            }
        }
        "main" => {
            let all = Arc::new(Barrier::new(2));
            main_holds = locks[..2].iter().map(|lock| lock.lock().unwrap()).collect();
            for number in 0..2 {
                let (wanted, also, all) = (locks[number].clone(), locks[1 - number].clone(), all.clone());
                std::thread::spawn(move || wants(&wanted, &also, &all));
            }
        }
        // No address of a static lock need be on its owner's stack.
        "statics" => {
            let all = Arc::new(Barrier::new(4));
            for number in 0..2 {
                let all = all.clone();
                std::thread::spawn(move || holds(if number == 0 { &FIRST } else { &SECOND }, &all));
            }
            for number in 0..2 {
                let all = all.clone();
                std::thread::spawn(move || {
                    if number == 0 { wants(&FIRST, &SECOND, &all) } else { wants(&SECOND, &FIRST, &all) }
                });
            }
        }
        _ => std::process::exit(2),
    }
    std::thread::sleep(Duration::from_millis(100));
    println!("ready");
    black_box(&main_holds);
    forever();
}
