// Threads parked in known waits of std, 20 frames deep. rustc -O [-C symbol-mangling-version=v0] [-C strip=symbols]
// usage: parked THREADS; prints "ready" once all of them are there. Thread N is called "wN" and does wait N % 9:
// mutex, condition variable, rwlock, channel, park, sleep, receive from a socket, accept, read from a pipe.
use std::hint::black_box;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

pub trait Wait {
    fn wait(&self);
}
struct OnMutex(Arc<Mutex<u64>>);
struct OnCondvar(Arc<(Mutex<bool>, Condvar)>);
struct OnRwLock(Arc<RwLock<u64>>);
struct OnChannel(Mutex<mpsc::Receiver<u64>>);
struct OnPark;
struct OnSleep;
struct OnUdp(UdpSocket);
struct OnAccept(TcpListener);
struct OnRead(std::fs::File);

impl Wait for OnMutex {
    #[inline(never)]
    fn wait(&self) {
        *black_box(self.0.lock().unwrap()) += 1;
    }
}
impl Wait for OnRwLock {
    #[inline(never)]
    fn wait(&self) {
        black_box(*self.0.read().unwrap());
    }
}
impl Wait for OnCondvar {
    #[inline(never)]
    fn wait(&self) {
        let mut open = self.0 .0.lock().unwrap();
        while !*open {
            open = self.0 .1.wait(open).unwrap();
        }
    }
}
impl Wait for OnChannel {
    #[inline(never)]
    fn wait(&self) {
        black_box(self.0.lock().unwrap().recv().ok());
    }
}
impl Wait for OnPark {
    #[inline(never)]
    fn wait(&self) {
        loop {
            std::thread::park();
        }
    }
}
impl Wait for OnSleep {
    #[inline(never)]
    fn wait(&self) {
        std::thread::sleep(Duration::from_secs(100_000));
        black_box(0);
    }
}
impl Wait for OnUdp {
    #[inline(never)]
    fn wait(&self) {
        let mut bytes = [0u8; 64];
        black_box(self.0.recv(&mut bytes).ok());
    }
}
impl Wait for OnAccept {
    #[inline(never)]
    fn wait(&self) {
        black_box(self.0.accept().ok());
    }
}
impl Wait for OnRead {
    #[inline(never)]
    fn wait(&self) {
        let mut byte = [0u8; 1];
        black_box((&self.0).read(&mut byte).ok());
    }
}

#[inline(never)]
fn descend(depth: usize, what: &dyn Wait, pad: &mut [u8; 48]) -> usize {
    pad[depth % 48] ^= 1;
    if depth == 0 {
        what.wait();
        return black_box(pad[0] as usize);
    }
    let mut mine = [depth as u8; 48];
    let below = descend(depth - 1, what, black_box(&mut mine));
    black_box(below + mine[depth % 48] as usize)
}

extern "C" {
    fn pipe(ends: *mut i32) -> i32;
}

fn main() {
    let threads: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let mutex = Arc::new(Mutex::new(0u64));
    let lock = Arc::new(RwLock::new(0u64));
    let condition = Arc::new((Mutex::new(false), Condvar::new()));
    let _held = mutex.lock().unwrap();
    let _written = lock.write().unwrap();
    let started = Arc::new(AtomicUsize::new(0));
    let mut senders = vec![];
    for number in 0..threads {
        let what: Box<dyn Wait + Send> = match number % 9 {
            0 => Box::new(OnMutex(mutex.clone())),
            1 => Box::new(OnCondvar(condition.clone())),
            2 => Box::new(OnRwLock(lock.clone())),
            3 => {
                let (sender, receiver) = mpsc::channel();
                senders.push(sender);
                Box::new(OnChannel(Mutex::new(receiver)))
            }
            4 => Box::new(OnPark),
            5 => Box::new(OnSleep),
            6 => Box::new(OnUdp(UdpSocket::bind("127.0.0.1:0").unwrap())),
            7 => Box::new(OnAccept(TcpListener::bind("127.0.0.1:0").unwrap())),
            _ => {
                use std::os::fd::FromRawFd;
                let mut ends = [0i32; 2];
                unsafe { pipe(ends.as_mut_ptr()) };
                Box::new(OnRead(unsafe { std::fs::File::from_raw_fd(ends[0]) }))
            }
        };
        let started = started.clone();
        std::thread::Builder::new()
            .name(format!("w{number}"))
            .stack_size(1 << 18)
            .spawn(move || {
                started.fetch_add(1, Ordering::SeqCst);
                black_box(descend(20, &*what, &mut [0; 48]))
            })
            .unwrap();
    }
    while started.load(Ordering::SeqCst) < threads {
        std::thread::yield_now();
    }
    println!("ready");
    std::thread::sleep(Duration::from_secs(100_000));
}
