/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The request ledger: per connection of a watched process, what was asked, what was answered, and when. And its futex
 * waits.
 *
 * One program at the end of every system call (its arguments are still in the saved registers), one where a thread
 * leaves its CPU, two at exec and exit. Where registers may not be read (lockdown=confidentiality), FROM_TRACEPOINTS takes
 * the arguments from raw_syscalls:sys_enter instead. x86-64 numbers and registers. No event goes to user space.
 */
#include "connections.h"
#include "call.h"
#include "heads.h"
#include "http2.h"
#include "transfer.h"
#include "futexes.h"
#include "registers.h"

struct message_header { u64 name; u32 name_len, pad; u64 iov, iov_len, control, control_len; u32 flags, pad2; };

#ifdef FROM_TRACEPOINTS
/* Thread -> arguments of the call that it is in. */
BPF_HASH(arguments, u64, struct registers, MAX_THREADS);
#endif

#define MSG_PEEK 2
#define EINPROGRESS 115
#define EPIPE 32
#define ECONNRESET 104
#define AF_INET 2
#define AF_INET6 10
#define F_DUPFD 0
#define F_DUPFD_CLOEXEC 1030

/* How a call names its bytes. */
enum shape { PLAIN, VECTOR, MESSAGE, MESSAGES, NO_BYTES, OPENS };

/* The end of one system call. */
static __always_inline int finish(u64 ctx, u32 tgid, struct watch *w, struct registers *r, long ret) {
  u32 zero = 0, fd = r->di, end = 0;
  struct call *k = current_call.lookup(&zero);
  if (!k)
    return 0;
  u8 shape = PLAIN;
  u16 family = 0;
  k->direction = IN;
  k->iov = k->base = 0;
  k->head = NO_HEAD;
  switch (r->orig_ax) {
  case 0: /* read */
    break;
  case 45: /* recvfrom */
    if (r->r10 & MSG_PEEK)
      return 0;
    break;
  case 1: case 44: /* write, sendto */
    k->direction = OUT;
    break;
  case 19: case 327: /* readv, preadv2 */
    shape = VECTOR;
    break;
  case 20: case 328: /* writev, pwritev2 */
    shape = VECTOR;
    k->direction = OUT;
    break;
  case 47: /* recvmsg */
    if (r->dx & MSG_PEEK)
      return 0;
    shape = MESSAGE;
    break;
  case 46: /* sendmsg */
    shape = MESSAGE;
    k->direction = OUT;
    break;
  case 299: /* recvmmsg */
    if (r->r10 & MSG_PEEK)
      return 0;
    shape = MESSAGES;
    break;
  case 307: /* sendmmsg */
    shape = MESSAGES;
    k->direction = OUT;
    break;
  case 40: /* sendfile */
    shape = NO_BYTES;
    k->direction = OUT;
    break;
  case 275: /* splice */
    shape = NO_BYTES;
    if (find(w, tgid, r->dx)) {
      fd = r->dx;
      k->direction = OUT;
    }
    break;
  case 43: case 288: /* accept, accept4 */
    if (ret < 0)
      return 0;
    fd = ret;
    shape = OPENS;
    break;
  case 42: /* connect */
    bpf_probe_read_user(&family, sizeof(family), (void *)r->si);
    if ((ret && ret != -EINPROGRESS) || (family != AF_INET && family != AF_INET6) || find(w, tgid, fd))
      return 0;
    shape = OPENS;
    break;
  case 72: /* fcntl */
    if (r->si != F_DUPFD && r->si != F_DUPFD_CLOEXEC)
      return 0;
  case 32: case 33: case 292: /* dup, dup2, dup3 */
    if (ret >= 0)
      duplicate(w, tgid, fd, ret);
    return 0;
  case 48: /* shutdown */
    if (ret)
      return 0;
    end = r->si ? SHUT_OUT : END_OF_INPUT;
    break;
  case 3: /* close */
    closed(w, tgid, fd);
    return 0;
  case 202: /* futex */
    end_futex(bpf_get_current_pid_tgid(), r, ret);
    return 0;
  case 436: /* close_range */
    if (ret == 0)
      w->flags |= CLOSED_RANGE;
    return 0;
  default:
    return 0;
  }
  if (shape == OPENS) {
    open_connection(w, tgid, fd, bpf_ktime_get_ns(), 0);
    return 0;
  }
  if (ret == -ECONNRESET || ret == -EPIPE)
    end = BROKEN;
  else if (ret == 0 && !end && k->direction == IN && (shape == PLAIN ? r->dx > 0 : shape != NO_BYTES))
    end = END_OF_INPUT;
  if (end)
    ended(w, tgid, fd, end, bpf_ktime_get_ns());
  if (ret <= 0)
    return 0;
  k->bytes = ret;
  if (shape == PLAIN) {
    k->base = r->si;
  } else if (shape == VECTOR) {
    k->iov = r->si;
    k->count = r->dx;
  } else if (shape == MESSAGE || shape == MESSAGES) {
    struct message_header m = {};
    bpf_probe_read_user(&m, sizeof(m), (void *)r->si);
    k->iov = m.iov;
    k->count = m.iov_len;
  }
  if (shape == MESSAGES) {
    /* `ret` messages of 64 bytes each, the length of each behind its header. */
    k->bytes = 0;
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < SEGMENTS; i++) {
      u32 n = 0;
      if (i >= ret || bpf_probe_read_user(&n, sizeof(n), (void *)(r->si + i * 64 + 56)))
        break;
      k->bytes += n;
    }
    if (!k->bytes)
      return 0;
  }
  transfer(ctx, w, tgid, fd, k);
  return 0;
}

/* What makes an unwatched process a watched one: it has, or is about to have, a connection. */
static __always_inline bool may_become_watched(u64 number) {
  return number == 42 || number == 43 || number == 50 || number == 288; /* connect, accept, listen, accept4 */
}

static __always_inline bool becomes_watched(struct registers *r, long ret) {
  u16 family = 0;
  if (r->orig_ax != 42)
    return ret >= 0;
  bpf_probe_read_user(&family, sizeof(family), (void *)r->si);
  return (ret == 0 || ret == -EINPROGRESS) && (family == AF_INET || family == AF_INET6);
}

/* The calls that `finish` looks at, or that make a process a watched one. */
static __always_inline bool matters(u64 number) {
  switch (number) {
  case 0: case 1: case 3: case 19: case 20: case 32: case 33: case 40: case 42: case 43: case 44: case 45: case 46:
  case 47: case 48: case 50: case 72: case 202: case 275: case 288: case 292: case 299: case 307: case 327: case 328:
  case 436:
    return true;
  }
  return false;
}

#ifndef FROM_TRACEPOINTS

int on_sys_exit(struct bpf_raw_tracepoint_args *ctx) {
  u64 saved = ctx->args[0];
  struct registers r;
  r.orig_ax = REGISTER(ORIG_AX);
  /* First of all: most calls are none of ours. */
  if (!matters(r.orig_ax))
    return 0;
  u32 tgid = bpf_get_current_pid_tgid() >> 32;
  struct watch *w = watched.lookup(&tgid);
  if (!w && !may_become_watched(r.orig_ax))
    return 0;
  long ret = (long)ctx->args[1];
#ifdef TYPED_REGISTERS
  r.r10 = REGISTER(R10);
  r.dx = REGISTER(DX);
  r.si = REGISTER(SI);
  r.di = REGISTER(DI);
#else
  bpf_probe_read_kernel(&r, sizeof(r), (void *)(saved + R10_IN_PT_REGS));
#endif
  if (!w && (!becomes_watched(&r, ret) || !(w = watch_process(tgid))))
    return 0;
  return finish((u64)ctx, tgid, w, &r, ret);
}

#else

/* The fields of raw_syscalls:sys_enter and sys_exit, as /sys/kernel/tracing/events says them. */
struct enter_event { u64 common; s64 id; u64 args[6]; };
struct exit_event { u64 common; s64 id; s64 ret; };

int on_sys_enter(struct enter_event *ctx) {
  u64 thread = bpf_get_current_pid_tgid();
  u32 tgid = thread >> 32;
  if (!(watched.lookup(&tgid) ? matters(ctx->id) : may_become_watched(ctx->id)))
    return 0;
  struct registers r = {};
  r.di = ctx->args[0];
  r.si = ctx->args[1];
  r.dx = ctx->args[2];
  r.r10 = ctx->args[3];
  r.orig_ax = ctx->id;
  arguments.update(&thread, &r);
  return 0;
}

int on_sys_exit(struct exit_event *ctx) {
  u64 thread = bpf_get_current_pid_tgid();
  u32 tgid = thread >> 32;
  struct registers *kept = arguments.lookup(&thread), r;
  if (!kept)
    return 0;
  r = *kept;
  arguments.delete(&thread);
  struct watch *w = watched.lookup(&tgid);
  if (r.orig_ax != ctx->id || (!w && (!becomes_watched(&r, ctx->ret) || !(w = watch_process(tgid)))))
    return 0;
  return finish((u64)ctx, tgid, w, &r, ctx->ret);
}

#endif

#ifndef FROM_TRACEPOINTS
#define EXIT_CONTEXT struct bpf_raw_tracepoint_args
#else
#define EXIT_CONTEXT struct exit_event
#endif

int on_frames(EXIT_CONTEXT *ctx) {
  follow_frames((u64)ctx);
  return 0;
}

int on_head(EXIT_CONTEXT *ctx) {
  u32 zero = 0;
  struct call *k = current_call.lookup(&zero);
  struct connection *c = k ? connections.lookup(&k->connection) : NULL;
  if (c)
    fill_head(c, k);
  return 0;
}

/* A new program: descriptors marked close-on-exec are gone without a close. */
int on_exec(struct bpf_raw_tracepoint_args *ctx) {
  u32 tgid = bpf_get_current_pid_tgid() >> 32;
  struct watch *w = watched.lookup(&tgid);
  if (w) {
    w->generation = bpf_ktime_get_ns();
    w->connections = 0;
    w->flags = CLOSED_RANGE;
  }
  return 0;
}

/* The end of a process. User space deletes its entries; until then a process with the same pid must not find them. */
int on_exit(struct bpf_raw_tracepoint_args *ctx) {
  u64 thread = bpf_get_current_pid_tgid();
  u32 tgid = thread >> 32, tid = thread;
  threads.delete(&tid);
  if (tgid != tid)
    return 0;
  struct watch *w = watched.lookup(&tgid);
  if (w) {
    w->generation = bpf_ktime_get_ns();
    w->connections = 0;
    w->exited = 1;
  }
  return 0;
}

/* A thread leaves its CPU: by itself, since what is preempted waits for nothing. */
int on_switch(struct bpf_raw_tracepoint_args *ctx) {
  u64 id = bpf_get_current_pid_tgid();
  u32 tgid = id >> 32, tid = id;
  if (ctx->args[0] /* preempted */ || !watched.lookup(&tgid))
    return 0;
  struct thread first = {.tgid = tgid}, *t = threads.lookup(&tid);
  if (t) {
    begins_to_wait(t);
    return 0;
  }
  begins_to_wait(&first);
  threads.update(&tid, &first);
  return 0;
}
