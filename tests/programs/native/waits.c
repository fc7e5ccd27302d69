/* Threads in known waits, each below three functions of its own. gcc -O1 -pthread [-g] waits.c
 * usage: waits WAIT... ; prints "ready TID..." (one per wait, in order) once all of them are started.
 * WAIT: mutex cond sem read sleep spin recurse churn alarm vfork; "recurse" sleeps 20 frames deep. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, of_cond = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int ends[2];
static volatile unsigned long counter;
static volatile int tids[1024], started;

KEEP void wait_mutex(void) { pthread_mutex_lock(&mutex); counter++; }
KEEP void wait_cond(void) {
    pthread_mutex_lock(&of_cond);
    for (;;) pthread_cond_wait(&cond, &of_cond);
}
KEEP void wait_sem(void) { sem_wait(&semaphore); counter++; }
KEEP void wait_read(void) { char byte; if (read(ends[0], &byte, 1) < 0) counter++; counter++; }
KEEP void wait_sleep(void) { sleep(100000); counter++; }
KEEP void wait_spin(void) { for (;;) counter++; }
KEEP int wait_recurse(int depth) {
    if (!depth) sleep(100000);
    else counter += wait_recurse(depth - 1) + 1;
    return counter & 1;
}
/* A thread that never rests, always between 1 and 40 frames deep. */
KEEP int churn_down(int depth) {
    volatile int mine = depth;
    if (depth) mine += churn_down(depth - 1);
    return mine + 1;
}
KEEP void wait_churn(void) { for (int depth = 0;; depth = (depth + 1) % 40) { counter += churn_down(depth); usleep(50); } }
/* The parent of a vfork sleeps uninterruptibly until its child ends. */
KEEP void wait_vfork(void) { if (!vfork()) { usleep(60000000); _exit(0); } counter++; }
static void on_signal(int number) { (void)number; sleep(100000); counter++; }
/* Sleeps in a signal handler on a stack of its own. */
KEEP void wait_alarm(void) {
    stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&other, 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &action, 0);
    pthread_kill(pthread_self(), SIGUSR2);
    counter++;
}

KEEP void middle(const char *what) {
    if (!strcmp(what, "mutex")) wait_mutex();
    if (!strcmp(what, "cond")) wait_cond();
    if (!strcmp(what, "sem")) wait_sem();
    if (!strcmp(what, "read")) wait_read();
    if (!strcmp(what, "sleep")) wait_sleep();
    if (!strcmp(what, "spin")) wait_spin();
    if (!strcmp(what, "recurse")) wait_recurse(20);
    if (!strcmp(what, "churn")) wait_churn();
    if (!strcmp(what, "vfork")) wait_vfork();
    if (!strcmp(what, "alarm")) wait_alarm();
    counter++;
}
struct job { const char *what; int at; };
KEEP void *run(void *argument) {
    struct job *job = argument;
    tids[job->at] = syscall(SYS_gettid);
    __sync_fetch_and_add(&started, 1);
    middle(job->what);
    counter++;
    return 0;
}

int main(int count, char **arguments) {
    sem_init(&semaphore, 0, 0);
    if (pipe(ends)) return 1;
    pthread_mutex_lock(&mutex);
    for (int at = 1; at < count; at++) {
        pthread_t thread;
        struct job *job = malloc(sizeof *job);
        job->what = arguments[at];
        job->at = at;
        if (pthread_create(&thread, 0, run, job)) return 1;
    }
    while (started < count - 1) usleep(1000);
    printf("ready");
    for (int at = 1; at < count; at++) printf(" %d", tids[at]);
    printf("\n");
    fflush(stdout);
    pause();
}
