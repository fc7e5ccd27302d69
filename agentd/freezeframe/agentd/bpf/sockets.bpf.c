/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What becomes of TCP connections: opened, refused, closed and by whom first, reset, sent again. From the fields of
 * stable tracepoints; each event goes into a ring that user space maps and reads, and that it may be too slow for: its
 * number tells what was overwritten.
 */

enum what {
  CONNECTED = 1,    /* by this end */
  ACCEPTED = 2,
  CONNECT_FAILED = 3,
  CLOSED_HERE = 4,  /* this end was the first to close */
  CLOSED_THERE = 5, /* the other end was */
  RESET_SENT = 6,
  RESET_RECEIVED = 7,
  RETRANSMITTED = 8
};

/* As agentd/bpf/layout.py has it. */
struct socket_event {
  u64 at_ns;
  u32 number; /* of this event, from 1; written last */
  u32 pid;    /* the process at work, where the event is a call of one */
  u8 local[16]; /* IPv4 mapped into IPv6 */
  u8 remote[16];
  u16 local_port;
  u16 remote_port;
  u16 what;
  u16 pad;
};

/* Written here, read by user space. */
BPF_F_TABLE("array", u32, struct socket_event, socket_events, EVENTS, 1024 /* BPF_F_MMAPABLE */);
/* Number of the last event. */
BPF_F_TABLE("array", u32, u64, last_event, 1, 1024);

/* TCP states, as in include/net/tcp_states.h and in the output of ss for decades. */
enum state { ESTABLISHED = 1, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE, CLOSE_WAIT };
#define IPPROTO_TCP 6

static __always_inline struct socket_event *next_event(u16 what) {
  u32 zero = 0;
  u64 *last = last_event.lookup(&zero);
  if (!last)
    return NULL;
#if __clang_major__ < 15
  u64 number = __sync_fetch_and_add(last, 1) + 1;
#else
  /* The result of the above is refused by LLVM 21, as BCC runs it; that of 14 knows no assembler. */
  u64 number = 1;
  __asm__ __volatile__("%0 = atomic_fetch_add((u64 *)(%1 + 0), %0)" : "+r"(number) : "r"(last) : "memory");
  number++;
#endif
  u32 place = number & (EVENTS - 1);
  struct socket_event *e = socket_events.lookup(&place);
  if (!e)
    return NULL;
  e->at_ns = bpf_ktime_get_ns();
  e->what = what;
  e->pid = 0;
  e->number = number;
  return e;
}

TRACEPOINT_PROBE(sock, inet_sock_set_state) {
  u16 what = 0;
  int from = args->oldstate, to = args->newstate;
  if (args->protocol != IPPROTO_TCP)
    return 0;
  if (from == SYN_SENT && to == ESTABLISHED)
    what = CONNECTED;
  else if (from == SYN_RECV && to == ESTABLISHED)
    what = ACCEPTED;
  else if (from == SYN_SENT && to == CLOSE)
    what = CONNECT_FAILED;
  else if (from == ESTABLISHED && to == FIN_WAIT1)
    what = CLOSED_HERE;
  else if (from == ESTABLISHED && to == CLOSE_WAIT)
    what = CLOSED_THERE;
  if (!what)
    return 0;
  struct socket_event *e = next_event(what);
  if (!e)
    return 0;
  if (what == CLOSED_HERE)
    e->pid = bpf_get_current_pid_tgid() >> 32;
  e->local_port = args->sport;
  e->remote_port = args->dport;
  __builtin_memcpy(e->local, args->saddr_v6, 16);
  __builtin_memcpy(e->remote, args->daddr_v6, 16);
  return 0;
}

#define COPY_ENDS(e)                              \
  (e)->local_port = args->sport;                  \
  (e)->remote_port = args->dport;                 \
  __builtin_memcpy((e)->local, args->saddr_v6, 16); \
  __builtin_memcpy((e)->remote, args->daddr_v6, 16)

TRACEPOINT_PROBE(tcp, tcp_retransmit_skb) {
  struct socket_event *e = next_event(RETRANSMITTED);
  if (e) {
    COPY_ENDS(e);
  }
  return 0;
}

TRACEPOINT_PROBE(tcp, tcp_receive_reset) {
  struct socket_event *e = next_event(RESET_RECEIVED);
  if (e) {
    COPY_ENDS(e);
  }
  return 0;
}
