/* Stands in for libnvidia-ml.so.1 where there is no GPU. Steered by environment variables, read at each call:
 *   STUB_NVML_GPUS=8
 *   STUB_NVML_FAULT="FUNCTION:ACTION[,...]"   "*" = any function; FUNCTION@3 = of GPU 3 only
 *       hang      sleep for ever            dstate  sleep in an uninterruptible vfork
 *       spin      burn CPU for ever         page    read STUB_NVML_PAGE, a file that never answers
 *       slow=MS   answer late               crash   SIGSEGV
 *       N         return nvmlReturn_t N: 15 GPU is lost, 999 unknown, 3 not supported, 9 driver not loaded
 * Built with -DWITHOUT_POWER it lacks a symbol, as an old driver does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32; typedef unsigned long long u64;
static int ngpu(void) { const char *e = getenv("STUB_NVML_GPUS"); return e ? atoi(e) : 8; }

static void act(const char *a) {
    if (!strncmp(a, "slow=", 5)) usleep(atoi(a + 5) * 1000);
    else if (!strncmp(a, "hang", 4)) for (;;) pause();
    else if (!strncmp(a, "spin", 4)) for (volatile long i = 0;; i++);
    else if (!strncmp(a, "crash", 5)) raise(SIGSEGV);
    else if (!strncmp(a, "dstate", 6)) { if (vfork() == 0) { for (;;) pause(); } }
    else if (!strncmp(a, "page", 4)) {
        char b; int fd = open(getenv("STUB_NVML_PAGE"), O_RDONLY);
        if (read(fd, &b, 1) < 0) _exit(1);
    }
}

static int fault(const char *fn, int dev) {
    char buf[1024]; const char *e = getenv("STUB_NVML_FAULT"), *file = getenv("STUB_NVML_FILE");
    if (file) {
        int fd = open(file, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : read(fd, buf, sizeof buf - 1);
        if (fd >= 0) close(fd);
        buf[n < 0 ? 0 : n] = 0; e = buf;
    }
    if (!e) return 0;
    char copy[1024], *save; snprintf(copy, sizeof copy, "%s", e);
    for (char *t = strtok_r(copy, ",\n", &save); t; t = strtok_r(NULL, ",\n", &save)) {
        char *c = strchr(t, ':'); if (!c) continue; *c++ = 0;
        char *at = strchr(t, '@'); if (at) { *at++ = 0; if (atoi(at) != dev) continue; }
        if (strcmp(t, "*") && strcmp(t, fn)) continue;
        if (*c >= '0' && *c <= '9') return atoi(c);
        act(c);
    }
    return 0;
}
#define F(dev) do { int r_ = fault(__func__, dev); if (r_) return r_; } while (0)
#define IDX(h) ((int)((u64)(h) - 0x1000))

int nvmlInit_v2(void) { F(-1); return 0; }
int nvmlInitWithFlags(u32 f) { F(-1); return 0; }
int nvmlShutdown(void) { F(-1); return 0; }
const char *nvmlErrorString(int r) { return r == 15 ? "GPU is lost" : "stub error"; }
int nvmlSystemGetDriverVersion(char *b, u32 n) { F(-1); snprintf(b, n, "000.00-stub"); return 0; }
int nvmlSystemGetNVMLVersion(char *b, u32 n) { F(-1); snprintf(b, n, "13.000.00-stub"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { F(-1); *v = 13000; return 0; }
int nvmlDeviceGetCount_v2(u32 *n) { F(-1); *n = ngpu(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, void **h) { F(i); if ((int)i >= ngpu()) return 2; *h = (void *)(0x1000ULL + i); return 0; }
int nvmlDeviceGetIndex(void *h, u32 *i) { F(IDX(h)); *i = IDX(h); return 0; }
int nvmlDeviceGetName(void *h, char *b, u32 n) { F(IDX(h)); snprintf(b, n, "Stub GPU"); return 0; }
int nvmlDeviceGetUUID(void *h, char *b, u32 n) { F(IDX(h)); snprintf(b, n, "GPU-00000000-0000-0000-0000-%012d", IDX(h)); return 0; }
int nvmlDeviceGetTemperature(void *h, u32 s, u32 *t) { F(IDX(h)); *t = 40 + IDX(h); return 0; }
#ifndef WITHOUT_POWER
int nvmlDeviceGetPowerUsage(void *h, u32 *mw) { F(IDX(h)); *mw = 100000 + IDX(h); return 0; }
#endif
int nvmlDeviceGetUtilizationRates(void *h, u32 *u) { F(IDX(h)); u[0] = 100; u[1] = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, u64 *m) { F(IDX(h)); m[0] = 1ULL << 36; m[1] = 1ULL << 35; m[2] = 1ULL << 35; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *h, u32 *g) { F(IDX(h)); *g = 5; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *h, u32 *g) { F(IDX(h)); *g = 16; return 0; }
int nvmlDeviceGetPcieReplayCounter(void *h, u32 *n) { F(IDX(h)); *n = 2; return 0; }
int nvmlDeviceGetPcieThroughput(void *h, u32 counter, u32 *kb) { F(IDX(h)); *kb = counter == 0 ? 1500 : 2500; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *h, u32 *mw) { F(IDX(h)); *mw = 700000; return 0; }
int nvmlDeviceGetClockInfo(void *h, u32 kind, u32 *mhz) { F(IDX(h)); *mhz = kind == 1 ? 1980 : 2619; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, u64 *bits) { F(IDX(h)); *bits = 0x4 | 0x80; return 0; }
int nvmlDeviceGetTotalEccErrors(void *h, u32 kind, u32 counter, u64 *n) { F(IDX(h)); *n = kind ? 1 : 7; return 0; }
int nvmlDeviceGetRemappedRows(void *h, u32 *c, u32 *u, u32 *p, u32 *f) { F(IDX(h)); *c = 1; *u = 2; *p = 1; *f = 0; return 0; }
int nvmlDeviceGetNvLinkState(void *h, u32 link, u32 *s) { F(IDX(h)); if (link >= 4) return 2; *s = link != 3; return 0; }
int nvmlDeviceGetNvLinkErrorCounter(void *h, u32 link, u32 kind, u64 *n) { F(IDX(h)); *n = kind == 0 ? 5 : 0; return 0; }
int nvmlDeviceGetMigMode(void *h, u32 *now, u32 *next) { F(IDX(h)); *now = *next = 0; return 0; }
int nvmlDeviceGetPersistenceMode(void *h, u32 *on) { F(IDX(h)); *on = 1; return 0; }
int nvmlDeviceGetComputeMode(void *h, u32 *mode) { F(IDX(h)); *mode = 3; return 0; }
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p) { F(IDX(h)); memset(p, 0, sizeof *p); snprintf(p->bus_id, 32, "00000000:%02X:00.0", IDX(h)); return 0; }
struct running { u32 pid; u64 memory; u32 gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, u32 *n, struct running *r) {
    F(IDX(h));
    if (*n < 2) { *n = 2; return 7; }
    *n = 2;
    r[0] = (struct running){4711 + IDX(h), 1ULL << 34, 0, 0};
    r[1] = (struct running){99, ~0ULL, 0, 0};
    return 0;
}
