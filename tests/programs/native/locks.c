/* Threads and processes that wait for each other, for good or only for long. gcc -O1 -pthread locks.c
 * usage: locks SCENE; prints "ready PID..." with every process of the scene once all of them wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t m[4];
static pthread_rwlock_t rw[2] = {PTHREAD_RWLOCK_INITIALIZER, PTHREAD_RWLOCK_INITIALIZER};
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static sem_t s;
static int a[2], b[2];
static pid_t child_pid;
static pthread_barrier_t all_hold;
static volatile unsigned long counter;

static void *forever(void) { for (;;) sleep(100000); }
static void in_a_year(struct timespec *t) { clock_gettime(CLOCK_REALTIME, t); t->tv_sec += 31536000; }
static void read_byte(int fd) { char x; while (read(fd, &x, 1) < 0 && errno == EINTR) ; }
static void thread(void *(*run)(void *), long number) {
    pthread_t t;
    if (pthread_create(&t, 0, run, (void *)number)) exit(1);
}
static void *nothing(void *n) { (void)n; forever(); return 0; }

/* Two threads, crossed: each holds one and wants the other's. */
static void *crossed(void *n) {
    long me = (long)n;
    pthread_mutex_lock(&m[me]);
    pthread_barrier_wait(&all_hold);
    pthread_mutex_lock(&m[!me]);
    counter++;
    return 0;
}
/* Of three in a ring. */
static void *ring(void *n) {
    long me = (long)n;
    pthread_mutex_lock(&m[me]);
    pthread_barrier_wait(&all_hold);
    pthread_mutex_lock(&m[(me + 1) % 3]);
    counter++;
    return 0;
}
static void *wants(void *n) { pthread_mutex_lock(&m[(long)n]); counter++; return 0; }
static void *relock(void *n) { pthread_mutex_lock(&m[(long)n]); pthread_mutex_lock(&m[(long)n]); counter++; return 0; }
static void *crossed_rw(void *n) {
    long me = (long)n;
    pthread_rwlock_wrlock(&rw[me]);
    pthread_barrier_wait(&all_hold);
    pthread_rwlock_rdlock(&rw[!me]);
    counter++;
    return 0;
}
static void *crossed_timed(void *n) {
    long me = (long)n;
    struct timespec t;
    pthread_mutex_lock(&m[me]);
    pthread_barrier_wait(&all_hold);
    in_a_year(&t);
    pthread_mutex_timedlock(&m[!me], &t);
    counter++;
    return 0;
}
/* Holds its own, wants the next one's; the last one sleeps. */
static void *chain(void *n) {
    long me = (long)n;
    pthread_mutex_lock(&m[me]);
    pthread_barrier_wait(&all_hold);
    if (me < 2) pthread_mutex_lock(&m[me + 1]);
    forever();
    return 0;
}
static void *holds_and_spins(void *n) { pthread_mutex_lock(&m[(long)n]); pthread_barrier_wait(&all_hold); for (;;) counter++; }
static void *holds_and_ends(void *n) { pthread_mutex_lock(&m[(long)n]); pthread_barrier_wait(&all_hold); return 0; }
static void *holds_and_reads(void *n) { pthread_mutex_lock(&m[(long)n]); pthread_barrier_wait(&all_hold); read_byte(a[0]); return 0; }
static void *holds_and_writes(void *n) {
    char x = 0;
    pthread_mutex_lock(&m[(long)n]);
    pthread_barrier_wait(&all_hold);
    if (write(a[1], &x, 1) < 0) counter++;
    return 0;
}
static void *after_barrier_wants(void *n) { pthread_barrier_wait(&all_hold); return wants(n); }
static void *on_cond(void *n) { long me = (long)n; pthread_mutex_lock(&m[me]); for (;;) pthread_cond_wait(&c, &m[me]); }
static void *on_sem(void *n) { (void)n; for (;;) sem_wait(&s); }
static void *reads(void *n) { read_byte((int)(long)n); return 0; }
static void *trylock(void *n) {
    for (;;) {
        pthread_mutex_lock(&m[(long)n]);
        if (!pthread_mutex_trylock(&m[!(long)n])) pthread_mutex_unlock(&m[!(long)n]);
        pthread_mutex_unlock(&m[(long)n]);
        usleep(100);
    }
}
static void *holds_rw(void *n) { pthread_rwlock_wrlock(&rw[(long)n]); pthread_barrier_wait(&all_hold); forever(); return 0; }
static void *wants_rw(void *n) { pthread_barrier_wait(&all_hold); pthread_rwlock_rdlock(&rw[(long)n]); counter++; return 0; }

static pid_t other(void) {
    pid_t pid = fork();
    if (!pid) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}
static void full(int fd) {
    char block[4096] = {0};
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (write(fd, block, sizeof block) > 0) ;
    fcntl(fd, F_SETFL, 0);
}

int main(int count, char **arguments) {
    const char *scene = count > 1 ? arguments[1] : "";
    pid_t third = 0;
#define IS(name) !strcmp(scene, name)
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    if (IS("mutex-pi")) pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    if (IS("mutex-robust")) pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    if (IS("recursive")) pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    for (int i = 0; i < 4; i++) pthread_mutex_init(&m[i], &kind);
    sem_init(&s, 0, 0);
    if (pipe(a) || pipe(b)) return 1;

    /* Deadlocks. */
    if (IS("mutex") || IS("mutex-pi") || IS("mutex-robust")) {
        pthread_barrier_init(&all_hold, 0, 3);
        thread(crossed, 0); thread(crossed, 1);
        thread(after_barrier_wants, 0);
    } else if (IS("ring")) {
        pthread_barrier_init(&all_hold, 0, 3);
        for (long i = 0; i < 3; i++) thread(ring, i);
    } else if (IS("relock")) {
        thread(relock, 0);
    } else if (IS("rwlock")) {
        pthread_barrier_init(&all_hold, 0, 2);
        thread(crossed_rw, 0); thread(crossed_rw, 1);
    } else if (IS("pipes") || IS("pipes-third") || IS("pipes-helper")) {
        /* Each reads what only the other can write. -third: somebody else could, too. -helper: so could another thread. */
        if (!(child_pid = other())) { close(a[1]); close(b[0]); if (IS("pipes-helper")) thread(nothing, 0); read_byte(a[0]); _exit(0); }
        if (IS("pipes-third") && !(third = other())) forever();
        close(a[0]); close(b[1]);
    } else if (IS("sockets") || IS("sockets-timeout")) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 1;
        if (!(child_pid = other())) {
            close(pair[0]);
            if (IS("sockets-timeout")) { struct pollfd p = {pair[1], POLLIN, 0}; poll(&p, 1, 86400000); }
            read_byte(pair[1]);
            _exit(0);
        }
        close(pair[1]);
        b[0] = pair[0];
    } else if (IS("child-output")) {
        /* Waits for a child that waits for its output to be read. */
        if (!(child_pid = other())) { char x = 0; close(a[0]); full(a[1]); if (write(a[1], &x, 1)) _exit(0); _exit(0); }
        close(a[1]);
    } else if (IS("stopped-reader")) {
        /* A thread holds a mutex and writes to a full pipe whose only reader is stopped; others want the mutex. */
        if (!(child_pid = other())) { close(a[1]); raise(SIGSTOP); forever(); }
        close(a[0]);
        pthread_barrier_init(&all_hold, 0, 2);
        full(a[1]);
        thread(holds_and_writes, 0); thread(after_barrier_wants, 0);
    } else if (IS("posix")) {
        /* Holds a lock on a file and reads from a child that wants the lock. */
        int fd = fileno(tmpfile());
        struct flock lock = {.l_type = F_WRLCK};
        fcntl(fd, F_SETLK, &lock);
        if (!(child_pid = other())) { close(b[0]); fcntl(fd, F_SETLKW, &lock); _exit(0); }
        close(b[1]);

    /* Lookalikes. */
    } else if (IS("chain")) {
        pthread_barrier_init(&all_hold, 0, 3);
        for (long i = 0; i < 3; i++) thread(chain, i);
    } else if (IS("timed")) {
        pthread_barrier_init(&all_hold, 0, 2);
        thread(crossed_timed, 0); thread(crossed_timed, 1);
    } else if (IS("owner-spins")) {
        pthread_barrier_init(&all_hold, 0, 2);
        thread(holds_and_spins, 0); thread(after_barrier_wants, 0);
    } else if (IS("owner-ended")) {
        pthread_barrier_init(&all_hold, 0, 2);
        thread(holds_and_ends, 0); thread(after_barrier_wants, 0);
    } else if (IS("owner-reads")) {
        pthread_barrier_init(&all_hold, 0, 3);
        thread(holds_and_reads, 0); thread(after_barrier_wants, 0); thread(after_barrier_wants, 0);
    } else if (IS("conditions")) {
        thread(on_cond, 0); thread(on_cond, 1);
    } else if (IS("semaphores")) {
        thread(on_sem, 0); thread(on_sem, 1);
    } else if (IS("own-pipes")) {
        thread(reads, a[0]); thread(reads, b[0]);
    } else if (IS("recursive")) {
        pthread_mutex_lock(&m[0]); pthread_mutex_lock(&m[0]);
        thread(wants, 0); thread(wants, 0);
    } else if (IS("trylock")) {
        thread(trylock, 0); thread(trylock, 1);
    } else if (IS("rwlock-writer")) {
        pthread_barrier_init(&all_hold, 0, 3);
        thread(holds_rw, 0); thread(wants_rw, 0); thread(wants_rw, 0);
    } else if (IS("child-sleeps")) {
        if (!(child_pid = other())) forever();
    } else if (IS("flock") || IS("flock-free")) {
        char path[] = "/tmp/locksXXXXXX";
        int fd = mkstemp(path);
        flock(fd, LOCK_EX);
        if (!(child_pid = other())) { int mine = open(path, O_RDWR); unlink(path); close(fd); flock(mine, LOCK_EX); _exit(0); }
    } else {
        return 2;
    }
    usleep(100000);
    printf("ready %d", getpid());
    if (child_pid) printf(" %d", child_pid);
    if (third) printf(" %d", third);
    printf("\n");
    fflush(stdout);
    if (IS("pipes") || IS("pipes-third") || IS("pipes-helper") || IS("sockets") || IS("sockets-timeout") || IS("posix"))
        read_byte(b[0]);
    if (IS("child-output") || IS("child-sleeps")) waitpid(child_pid, 0, 0);
    forever();
}
