/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The request ledger: per connection of a watched process, what was asked, what was answered, and when. And its futex
 * waits.
 *
 * One program at the end of every system call (its arguments are still in the saved registers), one where a thread
 * leaves its CPU, two at exec and exit. Where registers may not be read (lockdown=confidentiality), FROM_TRACEPOINTS takes
 * the arguments from raw_syscalls:sys_enter instead. x86-64 numbers and registers. No event goes to user space.
 */
#include "ledger.h"
#include "messages.h"

/* tgid -> watch. Inserted at its first connect, listen or accept and by user space; deleted by user space after exit. */
BPF_HASH(watched, u32, struct watch, MAX_PROCESSES);
/* (tgid, fd) -> connection. Inserted with it and by dup; deleted by close and by user space. */
BPF_HASH(descriptors, struct descriptor, struct reference, MAX_CONNECTIONS);
/* Inserted by connect, accept, or the first head on a descriptor; deleted by the last close, by user space when the
   process has ended, and, answered and idle, when room is needed. Read by user space. Never LRU: the oldest are stuck. */
BPF_HASH(connections, u64, struct connection, MAX_CONNECTIONS);
/* Filled here, parsed, cleared and freed by user space, which maps it. */
BPF_F_TABLE("array", u32, struct head, heads, HEADS, 1024 /* BPF_F_MMAPABLE */);
struct head_states { u8 state[HEADS]; };
BPF_F_TABLE("array", u32, struct head_states, head_states, 1, 1024);
/* Free heads. Pushed by user space, popped here. */
BPF_QUEUE(free_heads, u32, HEADS);
/* Open HTTP/2 streams. Inserted and deleted here; deleted by user space with their connection. */
BPF_HASH(streams, struct stream, struct stream_state, MAX_STREAMS);
/* Thread -> when it last began to wait. Inserted and written when it leaves its CPU, deleted at its end; read by user
   space. */
BPF_HASH(threads, u32, struct thread, MAX_THREADS);
/* What went on at each address; the longest unused go when there is no room: a wait itself is above. */
BPF_TABLE("lru_hash", struct futex, struct futex_state, futexes, MAX_FUTEXES);
BPF_F_TABLE("array", u32, struct control, control, 1, 1024);
BPF_TABLE("percpu_array", u32, u64, counters, COUNTERS);
/* Zeros, copied into new entries: too large for the stack. */
BPF_ARRAY(blank, struct connection, 1);

/* Have the compiler forget what it knows of a number, so that it keeps the mask that the verifier wants to see. */
#define FORGET(x) __asm__ __volatile__("" : "+r"(x))

struct registers { u64 r10, r9, r8, ax, cx, dx, si, di, orig_ax; };
#define R10_IN_PT_REGS 56

struct iovec { u64 base, len; };
struct message_header { u64 name; u32 name_len, pad; u64 iov, iov_len, control, control_len; u32 flags, pad2; };

/* One transfer of bytes. `iov` is 0 for one plain buffer. */
struct call {
  u64 now, iov, base, bytes;
  u64 first, first_len, second; /* where its first bytes are */
  u64 tail;                     /* its last bytes, the last one in the highest byte */
  u32 tail_len;                 /* how many of them there are; 0 = not found */
  u64 connection;
  u8 start[32]; /* its first bytes */
  u64 left, len; /* where the HTTP/2 program is */
  u32 count, direction, next;
  u32 head; /* where the bytes go to, NO_HEAD when nowhere */
};
/* The call at hand, for the programs that continue with it. Here and not on the stack also so that the verifier, which
   follows what it knows of stack slots through every branch, comes to an end. */
BPF_TABLE("percpu_array", u32, struct call, current_call, 1);
BPF_PROG_ARRAY(continuations, 2);
enum continuation { FRAMES, HEAD_BYTES_OF };

#ifdef FROM_TRACEPOINTS
/* Thread -> arguments of the call that it is in. */
BPF_HASH(arguments, u64, struct registers, MAX_THREADS);
#endif

static __always_inline void count(u32 which) {
  u64 *n = counters.lookup(&which);
  if (n)
    *n += 1;
}

static __always_inline struct watch *watch_process(u32 tgid) {
  struct watch w = {};
  w.generation = bpf_ktime_get_ns();
  watched.insert(&tgid, &w);
  struct watch *found = watched.lookup(&tgid);
  if (!found)
    count(LOST_PROCESSES);
  return found;
}

static __always_inline u64 find(struct watch *w, u32 tgid, u32 fd) {
  struct descriptor d = {.tgid = tgid, .fd = fd};
  struct reference *r = descriptors.lookup(&d);
  return r && r->generation == w->generation ? r->connection : 0;
}

/* Let go of what a descriptor led to; whether it led to anything. */
static __always_inline bool forget(struct watch *w, u32 tgid, u32 fd) {
  struct descriptor d = {.tgid = tgid, .fd = fd};
  struct reference *r = descriptors.lookup(&d);
  if (!r)
    return false;
  u64 id = r->connection, generation = r->generation;
  descriptors.delete(&d);
  if (generation != w->generation)
    return false;
  struct connection *c = connections.lookup(&id);
  if (!c)
    return false;
  if (c->references > 1) {
    __sync_fetch_and_add(&c->references, -1);
    return true;
  }
  connections.delete(&id);
  __sync_fetch_and_add(&w->connections, -1);
  return true;
}

/* A close has returned. Its number was free before that, and another thread may have a new connection there. */
static __always_inline void closed(struct watch *w, u32 tgid, u32 fd) {
  struct descriptor d = {.tgid = tgid, .fd = fd};
  struct reference *r = descriptors.lookup(&d);
  if (r && r->close_to_come)
    r->close_to_come = 0;
  else if (r)
    forget(w, tgid, fd);
}

static __always_inline struct connection *open_connection(struct watch *w, u32 tgid, u32 fd, u64 now, u32 flags) {
  u32 zero = 0;
  struct connection *empty = blank.lookup(&zero);
  if (!empty)
    return NULL;
  bool taken = forget(w, tgid, fd);
  if (w->connections >= MAX_CONNECTIONS_PER_PROCESS) {
    count(LOST_CONNECTIONS);
    return NULL;
  }
  u64 id = now << 6 | (bpf_get_smp_processor_id() & 63);
  if (connections.update(&id, empty)) {
    count(LOST_CONNECTIONS);
    return NULL;
  }
  struct descriptor d = {.tgid = tgid, .fd = fd};
  struct reference r = {.connection = id, .generation = w->generation, .close_to_come = taken};
  struct connection *c = connections.lookup(&id);
  if (!c || descriptors.update(&d, &r)) {
    connections.delete(&id);
    count(LOST_CONNECTIONS);
    return NULL;
  }
  __sync_fetch_and_add(&w->connections, 1);
  c->opened_ns = now;
  c->generation = w->generation;
  c->tgid = tgid;
  c->fd = fd;
  c->references = 1;
  c->flags = flags;
  c->direction = NOWHERE;
  c->request_head = c->response_head = NO_HEAD;
  return c;
}

/* Add the last of `len` bytes, which end at this address, to the last bytes of the call. */
static __always_inline bool add_to_tail(struct call *k, u64 end, u64 len) {
  u64 read = 0;
  u32 n = len < 8 ? len : 8;
  FORGET(n);
  n &= 15;
  if (n > 8 || bpf_probe_read_user(&read, n, (void *)(end - n)))
    return false;
  k->tail = n == 8 ? read : (k->tail >> (8 * n)) | (n ? read << (64 - 8 * n) : 0);
  return true;
}

/* Find where the first bytes of a call are, and its last ones; 0 = not found. */
static __always_inline void find_ends(struct call *k) {
  u32 known = k->bytes < 8 ? k->bytes : 8;
  if (!k->iov) {
    k->first = k->base;
    k->first_len = k->bytes;
    k->tail_len = add_to_tail(k, k->base + k->bytes, k->bytes) ? known : 0;
    return;
  }
  u64 left = k->bytes;
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SEGMENTS; i++) {
    struct iovec v = {};
    if (i >= k->count || bpf_probe_read_user(&v, sizeof(v), (void *)(k->iov + i * sizeof(v))))
      return;
    if (!v.len)
      continue;
    if (!k->first) {
      k->first = v.base;
      k->first_len = v.len;
    } else if (!k->second) {
      k->second = v.base;
    }
    u64 len = v.len < left ? v.len : left;
    left -= len;
    /* What is before a short segment in memory is no part of what was said. */
    if (left < 8 && !add_to_tail(k, v.base + len, len))
      return;
    if (!left) {
      k->tail_len = known;
      return;
    }
  }
}

/* The head at this index, if it still belongs to this connection. */
static __always_inline struct head *own_head(u32 index, u64 id, u32 kind) {
  u32 zero = 0;
  struct head_states *s = head_states.lookup(&zero);
  if (index >= HEADS || !s || s->state[index & (HEADS - 1)] != FILLING)
    return NULL;
  struct head *h = heads.lookup(&index);
  return h && h->connection == id && h->kind == kind ? h : NULL;
}

static __always_inline void keep_head(struct watch *w, struct connection *c, struct call *k, u32 kind) {
  u32 index = kind == REQUEST_HEAD ? c->request_head : c->response_head, zero = 0;
  struct head *h = own_head(index, k->connection, kind);
  if (!h) {
    struct control *now = control.lookup(&zero);
    struct head_states *s = head_states.lookup(&zero);
    if (!now || !s)
      return;
    if (w->sweep != now->sweep) {
      w->sweep = now->sweep;
      w->heads = 0;
    }
    if (w->heads >= MAX_HEADS_PER_PROCESS || free_heads.pop(&index) || index >= HEADS || !(h = heads.lookup(&index))) {
      count(LOST_HEADS);
      c->flags |= kind == REQUEST_HEAD ? NO_FREE_HEAD : 0;
      return;
    }
    __sync_fetch_and_add(&w->heads, 1);
    h->connection = k->connection;
    h->kind = kind;
    h->length = 0;
    h->sequence = 0;
    s->state[index & (HEADS - 1)] = FILLING;
    if (kind == REQUEST_HEAD)
      c->request_head = index;
    else
      c->response_head = index;
  }
  h->sequence = kind == REQUEST_HEAD ? c->requests : c->responses;
  h->length = 0;
  k->head = index;
}

/* A message goes on: its head may, too. */
static __always_inline void extend_head(struct connection *c, struct call *k, u32 kind) {
  u32 index = kind == REQUEST_HEAD ? c->request_head : c->response_head;
  struct head *h = own_head(index, k->connection, kind);
  u32 sequence = kind == REQUEST_HEAD ? c->requests : c->responses;
  if (h && h->sequence == sequence && h->length < HEAD_BYTES && !(c->flags & HEAD_GAP))
    k->head = index;
}

static __always_inline void begin_request(struct watch *w, struct connection *c, struct call *k) {
  count(REQUESTS);
  __sync_fetch_and_add(&w->requests, 1);
  c->requests++;
  c->request_ns = k->now;
  c->request_in = c->in_bytes;
  c->request_out = c->out_bytes;
  c->response_ns = 0;
  c->response_at = 0;
  c->interim = 0;
  c->answers = 0;
  c->pipelined = 0;
  c->last_head_at = 0;
  c->status = 0;
  c->flags &= ~(NO_FREE_HEAD | HEAD_GAP);
  keep_head(w, c, k, REQUEST_HEAD);
}

/* HTTP/1.x: what one call means. Gives whether the direction counts as turned. */
static __always_inline bool follow_http1(struct watch *w, struct connection *c, struct call *k, u8 what, u8 *bytes) {
  u8 asking = c->side == SERVER ? IN : OUT;
  if (k->direction == asking) {
    if (what != HTTP_REQUEST) {
      if (!c->response_ns)
        extend_head(c, k, REQUEST_HEAD);
      return true;
    }
    if (c->requests && !c->response_ns && c->direction == asking) {
      /* Pipelined, or a body that looks like a head: user space knows the content length and decides. */
      u64 total = asking == IN ? c->in_bytes - c->request_in : c->out_bytes - c->request_out;
      c->pipelined++;
      c->last_head_at = total;
      c->flags |= HEAD_GAP;
      return true;
    }
    begin_request(w, c, k);
    return true;
  }
  if (what == HTTP_RESPONSE) {
    /* Also behind an answer: of requests that came pipelined in one read only the first one was counted. */
    u16 status = status_of(bytes);
    if (status >= 100 && status < 200 && status != 101) {
      c->interim++;
      return false;
    }
    count(RESPONSES);
    __sync_fetch_and_add(&w->responses, 1);
    c->responses++;
    c->answers++;
    c->response_ns = k->now;
    c->response_at = k->direction == IN ? c->in_bytes : c->out_bytes;
    c->status = status;
    if (status == 101)
      c->protocol = UPGRADED;
    keep_head(w, c, k, RESPONSE_HEAD);
  } else if (c->response_ns) {
    extend_head(c, k, RESPONSE_HEAD);
  }
  return true;
}

static __always_inline void keep_tail(struct connection *c, struct call *k) {
  u64 *tail = k->direction == IN ? &c->in_tail : &c->out_tail;
  u64 said = k->tail;
  u32 n = k->tail_len;
  k->tail = 0;
  if (!n) {
    *tail = UNKNOWN_TAIL;
    return;
  }
  /* Only the signs that end a chunk are kept. */
#pragma unroll
  for (u32 i = 0; i < 64; i += 8) {
    u8 sign = said >> i;
    if (sign != '\r' && sign != '\n' && sign != '0')
      said &= ~(0xffULL << i);
  }
  *tail = n >= 8 ? said : (*tail >> (8 * n)) | said;
}

/* "GET / HTTP/1.0". */
#define SHORTEST_HEAD 14

/* Bytes went over a descriptor. */
static __always_inline void transfer(u64 ctx, struct watch *w, u32 tgid, u32 fd, struct call *k) {
  u8 *bytes = k->start;
  k->connection = find(w, tgid, fd);
  struct connection *c = k->connection ? connections.lookup(&k->connection) : NULL;
  /* No head is that short; what is, is an event descriptor. */
  if (!c && k->bytes < SHORTEST_HEAD)
    return;
  find_ends(k);
  u32 size = k->bytes < 15 ? k->bytes : 15;
  u32 n = k->first_len < size ? k->first_len : size, rest = size - n;
  FORGET(n);
  FORGET(rest);
  __builtin_memset(k->start, 0, 16);
  if (k->first)
    bpf_probe_read_user(bytes, n & 15, (void *)k->first);
  if (k->second && rest)
    bpf_probe_read_user(bytes + (n & 15), rest & 15, (void *)k->second);
  u8 what = k->first ? message_of(bytes) : OTHER_BYTES;
  if (!c) {
    if (what == OTHER_BYTES) {
      __builtin_memset(k->start, 0, 16);
      return;
    }
    c = open_connection(w, tgid, fd, k->now, SEEN_LATE);
    if (!c) {
      if (what == HTTP_REQUEST) {
        count(LOST_REQUESTS);
        __sync_fetch_and_add(&w->lost, 1);
      }
      return;
    }
    k->connection = find(w, tgid, fd);
  }
  bool turned = true, frames = false;
  if (c->protocol == UNKNOWN && what != OTHER_BYTES) {
    bool asks = what == HTTP_REQUEST || what == HTTP2_PREFACE || (what == TLS_HANDSHAKE && bytes[5] == 1);
    c->side = asks == (k->direction == IN) ? SERVER : CLIENT;
    c->protocol = what == HTTP2_PREFACE ? HTTP2 : what == TLS_HANDSHAKE ? TLS : HTTP1;
    if (c->protocol == HTTP2)
      c->skip[k->direction & 1] = 24;
  }
  if (c->protocol == HTTP1)
    turned = follow_http1(w, c, k, what, bytes);
  else if (c->protocol == HTTP2)
    frames = true;
  if (turned && c->direction != k->direction) {
    c->direction = k->direction;
    c->turn_ns = k->now;
  }
  if (k->direction == IN) {
    c->in_bytes += k->bytes;
    c->in_ns = k->now;
  } else {
    c->out_bytes += k->bytes;
    c->out_ns = k->now;
  }
  keep_tail(c, k);
  __builtin_memset(k->start, 0, 16);
  k->left = k->bytes;
  k->len = k->iov ? 0 : k->bytes;
  k->next = 0;
  if (frames)
    continuations.call((void *)ctx, FRAMES);
  else if (k->head != NO_HEAD)
    continuations.call((void *)ctx, HEAD_BYTES_OF);
}

static __always_inline void ended(struct watch *w, u32 tgid, u32 fd, u32 flag, u64 now) {
  u64 id = find(w, tgid, fd);
  struct connection *c = id ? connections.lookup(&id) : NULL;
  if (!c)
    return;
  c->flags |= flag;
  if (!c->ended_ns)
    c->ended_ns = now;
}

static __always_inline void duplicate(struct watch *w, u32 tgid, u32 from, u32 to) {
  if (from == to)
    return;
  u64 id = find(w, tgid, from);
  forget(w, tgid, to);
  struct connection *c = id ? connections.lookup(&id) : NULL;
  if (!c)
    return;
  struct descriptor d = {.tgid = tgid, .fd = to};
  struct reference r = {.connection = id, .generation = w->generation};
  if (!descriptors.update(&d, &r))
    __sync_fetch_and_add(&c->references, 1);
  else
    count(LOST_CONNECTIONS);
}

#define MSG_PEEK 2
#define EAGAIN 11
#define EINPROGRESS 115
#define EPIPE 32
#define ECONNRESET 104
#define AF_INET 2
#define AF_INET6 10
#define F_DUPFD 0
#define F_DUPFD_CLOEXEC 1030

enum futex_operation {
  FUTEX_WAIT = 0, FUTEX_WAKE = 1, FUTEX_REQUEUE = 3, FUTEX_CMP_REQUEUE = 4, FUTEX_WAKE_OP = 5, FUTEX_LOCK_PI = 6,
  FUTEX_UNLOCK_PI = 7, FUTEX_WAIT_BITSET = 9, FUTEX_WAKE_BITSET = 10, FUTEX_WAIT_REQUEUE_PI = 11, FUTEX_LOCK_PI2 = 13
};
#define FUTEX_OPERATION(op) ((u32)(op) & 127)
static __always_inline bool waits_for_futex(u32 operation) {
  return operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET || operation == FUTEX_LOCK_PI ||
         operation == FUTEX_LOCK_PI2 || operation == FUTEX_WAIT_REQUEUE_PI;
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
  k->iov = k->base = k->first = k->second = k->tail = 0;
  k->tail_len = 0;
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
  k->now = bpf_ktime_get_ns();
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

#ifdef TYPED_REGISTERS
/* The verifier knows what args[0] points to, and checks each field's place. */
#define REGISTER(at) (*(volatile u64 *)(saved + R10_IN_PT_REGS + 8 * (at)))
#else
static __always_inline u64 saved_register(u64 saved, u32 at) {
  u64 value = 0;
  bpf_probe_read_kernel(&value, sizeof(value), (void *)(saved + R10_IN_PT_REGS + 8 * at));
  return value;
}
#define REGISTER(at) saved_register(saved, at)
#endif

int on_sys_exit(struct bpf_raw_tracepoint_args *ctx) {
  u64 saved = ctx->args[0];
  struct registers r;
  r.orig_ax = REGISTER(8);
  /* First of all: most calls are none of ours. */
  if (!matters(r.orig_ax))
    return 0;
  u32 tgid = bpf_get_current_pid_tgid() >> 32;
  struct watch *w = watched.lookup(&tgid);
  if (!w && !may_become_watched(r.orig_ax))
    return 0;
  long ret = (long)ctx->args[1];
#ifdef TYPED_REGISTERS
  r.r10 = REGISTER(0);
  r.dx = REGISTER(5);
  r.si = REGISTER(6);
  r.di = REGISTER(7);
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

/* The first bytes of a message, from the call that `transfer` left behind. */
static __always_inline void fill_head(struct call *k) {
  u32 index = k->head;
  struct head *h = heads.lookup(&index);
  if (!h || h->connection != k->connection)
    return;
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < HEAD_PIECES; i++) {
    u32 at = h->length;
    if (!k->left || at >= HEAD_BYTES)
      return;
    if (!k->len) {
      struct iovec v = {};
      if (!k->iov || k->next >= k->count ||
          bpf_probe_read_user(&v, sizeof(v), (void *)(k->iov + k->next * sizeof(v))))
        break;
      k->next++;
      k->base = v.base;
      k->len = v.len < k->left ? v.len : k->left;
      continue;
    }
    u32 n = k->len < HEAD_PIECE ? k->len : HEAD_PIECE;
    FORGET(at);
    FORGET(n);
    at &= HEAD_BYTES - 1;
    if (n > HEAD_PIECE || bpf_probe_read_user(h->bytes + at, n, (void *)k->base))
      break;
    h->length = at + n;
    k->base += n;
    k->len -= n;
    k->left -= n;
  }
  if (!k->left || h->length >= HEAD_BYTES)
    return;
  struct connection *c = connections.lookup(&k->connection);
  if (c)
    c->flags |= HEAD_GAP;
}

/* HTTP/2: follow the frame headers of the call that `transfer` left behind. */
#define FRAME_STEPS 8
#define DATA_FRAME 0
#define HEADERS_FRAME 1
#define RST_STREAM_FRAME 3
#define END_STREAM 1

static __always_inline void follow_frame(struct watch *w, struct connection *c, struct call *k, u8 *h) {
  u8 type = h[3], flags = h[4];
  u64 number = ((u64)(h[5] & 0x7f) << 24) | (u64)h[6] << 16 | (u64)h[7] << 8 | h[8];
  struct stream s = {.connection = k->connection, .number = number};
  bool asks = k->direction == (c->side == SERVER ? IN : OUT);
  if (!number || (type != DATA_FRAME && type != HEADERS_FRAME && type != RST_STREAM_FRAME))
    return;
  if (asks && type == HEADERS_FRAME && number > c->last_stream) {
    struct stream_state opened = {.opened_ns = k->now};
    c->last_stream = number;
    c->streams_opened++;
    count(REQUESTS);
    if (w)
      __sync_fetch_and_add(&w->requests, 1);
    if (streams.update(&s, &opened))
      count(LOST_STREAMS);
    return;
  }
  if (asks && type != RST_STREAM_FRAME)
    return;
  struct stream_state *state = streams.lookup(&s);
  if (!state)
    return;
  if (!asks && !state->answered_ns) {
    state->answered_ns = k->now;
    count(RESPONSES);
    if (w)
      __sync_fetch_and_add(&w->responses, 1);
  }
  if (type == RST_STREAM_FRAME || (flags & END_STREAM)) {
    streams.delete(&s);
    c->streams_closed++;
  }
}

/* A few steps of it; the rest in the next of up to 32 tail calls, which the verifier checks one by one. */
static __always_inline void follow_frames(u64 ctx) {
  u32 zero = 0;
  struct call *k = current_call.lookup(&zero);
  if (!k)
    return;
  struct connection *c = connections.lookup(&k->connection);
  if (!c)
    return;
  u32 way = k->direction & 1, tgid = c->tgid;
  struct watch *w = watched.lookup(&tgid);
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < FRAME_STEPS; i++) {
    if (!k->left)
      return;
    if (!k->len) {
      struct iovec v = {};
      if (!k->iov || k->next >= k->count ||
          bpf_probe_read_user(&v, sizeof(v), (void *)(k->iov + k->next * sizeof(v)))) {
        c->flags |= FRAMES_LOST;
        return;
      }
      k->next++;
      k->base = v.base;
      k->len = v.len < k->left ? v.len : k->left;
      continue;
    }
    u64 n;
    if (c->skip[way]) {
      n = c->skip[way] < k->len ? c->skip[way] : k->len;
      c->skip[way] -= n;
    } else {
      u32 at = c->have[way] & 15;
      n = 9 - (at < 9 ? at : 0);
      if (n > k->len)
        n = k->len;
      u32 size = n;
      FORGET(at);
      FORGET(size);
      u32 place = at & 15;
      /* Or the compiler ORs what it knows to be disjoint, of which the verifier of 6.1 knows no bound. */
      FORGET(place);
      bpf_probe_read_user(&c->frame[way * 32 + place], size & 15, (void *)k->base);
      c->have[way] += n;
      if (c->have[way] >= 9) {
        u8 *h = c->frame + way * 32;
        c->have[way] = 0;
        c->skip[way] = (u32)h[0] << 16 | (u32)h[1] << 8 | h[2];
        follow_frame(w, c, k, h);
      }
    }
    k->base += n;
    k->len -= n;
    k->left -= n;
  }
  continuations.call((void *)ctx, 0);
  /* More than all the tail calls could follow. */
  c->flags |= FRAMES_LOST;
  c->skip[way] = c->have[way] = 0;
}

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
  if (k)
    fill_head(k);
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
  struct thread *t = threads.lookup(&tid);
  if (t) {
    t->off_ns = bpf_ktime_get_ns();
    return 0;
  }
  struct thread first = {.off_ns = bpf_ktime_get_ns(), .tgid = tgid};
  threads.update(&tid, &first);
  return 0;
}
