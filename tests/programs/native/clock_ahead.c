/* To be preloaded: the wall clock of a program is AHEAD_MS ahead; the clocks that nobody sets go on as they are.
   Waits until a moment of the wall clock last longer by that much. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long ns = now->tv_nsec + AHEAD_MS * 1000000LL;
        now->tv_sec += ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec moment;
    int result = clock_gettime(CLOCK_REALTIME, &moment);
    now->tv_sec = moment.tv_sec;
    now->tv_usec = moment.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec moment;
    clock_gettime(CLOCK_REALTIME, &moment);
    if (out)
        *out = moment.tv_sec;
    return moment.tv_sec;
}
