/* SPDX-License-Identifier: GPL-2.0-only */
/* Futex calls of watched processes, and since when their threads wait. */
#ifndef FREEZEFRAME_FUTEXES_H
#define FREEZEFRAME_FUTEXES_H

#include "connections.h"
#include "registers.h"

/* Thread -> when it last began to wait. Inserted and written when it leaves its CPU, deleted at its end; read by user
   space. */
BPF_HASH(threads, u32, struct thread, MAX_THREADS);
/* What went on at each address; the longest unused go when there is no room: a wait itself is above. */
BPF_TABLE("lru_hash", struct futex, struct futex_state, futexes, MAX_FUTEXES);

#define EAGAIN 11
enum futex_operation {
  FUTEX_WAIT = 0, FUTEX_WAKE = 1, FUTEX_REQUEUE = 3, FUTEX_CMP_REQUEUE = 4, FUTEX_WAKE_OP = 5, FUTEX_LOCK_PI = 6,
  FUTEX_UNLOCK_PI = 7, FUTEX_WAIT_BITSET = 9, FUTEX_WAKE_BITSET = 10, FUTEX_WAIT_REQUEUE_PI = 11, FUTEX_LOCK_PI2 = 13
};
#define FUTEX_OPERATION(op) ((u32)(op) & 127)
static __always_inline bool waits_for_futex(u32 operation) {
  return operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET || operation == FUTEX_LOCK_PI ||
         operation == FUTEX_LOCK_PI2 || operation == FUTEX_WAIT_REQUEUE_PI;
}

#ifdef TYPED_REGISTERS

static void *(*current_task)(void) = (void *)158;          /* bpf_get_current_task_btf, 5.11 */
static u64 (*registers_of_task)(void *task) = (void *)175; /* bpf_task_pt_regs, 5.15 */
struct timeout { u64 s, ns; };

/* The timeout of the futex wait that the current thread is in, as it was given; 0 = none. */
static __always_inline u64 timeout_of_wait(void) {
  u64 saved = registers_of_task(current_task()), at;
  struct timeout t = {};
  if (REGISTER(ORIG_AX) != 202 || !waits_for_futex(FUTEX_OPERATION(REGISTER(SI))) || !(at = REGISTER(R10)))
    return 0;
  return bpf_probe_read_user(&t, sizeof(t), (void *)at) ? 0 : t.s * 1000000000 + t.ns;
}

#else

static __always_inline u64 timeout_of_wait(void) {
  return 0;
}

#endif

static __always_inline void begins_to_wait(struct thread *t) {
  t->off_ns = bpf_ktime_get_ns();
  t->timeout_ns = timeout_of_wait();
}

static __always_inline void end_futex(u64 thread, struct registers *r, long ret) {
  u32 operation = FUTEX_OPERATION(r->si), tid = thread;
  struct futex key = {.address = r->di, .tgid = thread >> 32};
  struct futex_state none = {};
  u64 waited = 0;
  bool waiting = waits_for_futex(operation);
  if (waiting) {
    struct thread *t = threads.lookup(&tid);
    if (ret == -EAGAIN || !t || !t->off_ns)
      return;
    waited = bpf_ktime_get_ns() - t->off_ns;
    t->off_ns = 0;
  } else if (operation != FUTEX_UNLOCK_PI && ret <= 0) {
    return;
  }
  struct futex_state *s = futexes.lookup(&key);
  if (!s) {
    /* Not over what another CPU has just entered. */
    futexes.insert(&key, &none);
    s = futexes.lookup(&key);
    if (!s)
      return;
  }
  if (waiting) {
    __sync_fetch_and_add(&s->waits, 1);
    __sync_fetch_and_add(&s->wait_ns, waited);
    return;
  }
  u32 place = s->wakes % WAKERS;
  __sync_fetch_and_add(&s->wakes, 1);
  __sync_fetch_and_add(&s->woken, ret > 0 ? ret : 1);
  s->last_wake_ns = bpf_ktime_get_ns();
  s->wakers[place & (WAKERS - 1)] = tid;
}

#endif
