/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The structs that kernel and user side share; agentd/bpf/layout.py mirrors them, and a test compares sizes and offsets.
 * Times are CLOCK_MONOTONIC nanoseconds (bpf_ktime_get_ns). Sizes are given by the loader with -D.
 */
#ifndef FREEZEFRAME_LEDGER_H
#define FREEZEFRAME_LEDGER_H

#define IN 0
#define OUT 1
#define NOWHERE 2

#define NO_HEAD 0xffffffffu
/* Bytes of a head that one helper call copies; a head's buffer is longer by as much, for the verifier. */
#define HEAD_PIECE 512
#define HEAD_PIECES 8
#define SEGMENTS 16
/* Last bytes that could not be read: of signs that are never kept. */
#define UNKNOWN_TAIL (~0ULL)

enum protocol { UNKNOWN = 0, HTTP1 = 1, HTTP2 = 2, TLS = 3, UPGRADED = 4 };
enum side { NO_SIDE = 0, SERVER = 1, CLIENT = 2 };
enum head_kind { REQUEST_HEAD = 0, RESPONSE_HEAD = 1 };
enum head_state { FREE = 0, FILLING = 1, TAKEN = 2 };

/* Of a connection. */
#define SEEN_LATE 0x01    /* its opening was not seen */
#define END_OF_INPUT 0x02 /* a read gave 0 bytes: the other side has closed */
#define SHUT_OUT 0x04     /* this side has shut down its sending half */
#define BROKEN 0x08       /* a call failed with ECONNRESET or EPIPE */
#define NO_FREE_HEAD 0x10 /* the head of the last request could not be kept */
#define FRAMES_LOST 0x20  /* HTTP/2: a call had more frames than are followed; streams are not known from then on */
#define HEAD_GAP 0x40     /* the head of the last request has a part that was not copied */

/* Of a process. */
#define CLOSED_RANGE 0x01 /* descriptors were closed without a close each */

/* One watched process. */
struct watch {
  u64 generation;  /* begins anew with exec and exit: older entries of its descriptors are of another program */
  u64 sweep;       /* sweep in which `heads` counts */
  u64 requests;    /* since it is watched: begun, on all its connections */
  u64 responses;   /* the same of answers */
  u64 lost;        /* requests on connections that found no room */
  s32 connections; /* entries it has now, about: user space corrects it beside us */
  u32 heads;       /* heads it took in that sweep */
  u32 flags;
  u32 exited;
};

struct descriptor {
  u32 tgid;
  u32 fd;
};

struct reference {
  u64 connection;
  u64 generation;
  /* A connection that was opened while the entry of another had this number: the close of that other one, which freed
     the number, has not returned yet. */
  u64 close_to_come;
};

/* One connection as one process sees it. What every transfer looks at is first: few cache lines, of which none is warm
   where a router waits for slow engines. */
struct connection {
  u64 generation;
  u32 tgid;
  u32 fd;
  u32 references; /* descriptors of this process that lead to it */
  u32 flags;
  u16 status;
  u8 protocol;
  u8 side;
  u8 direction;
  u8 have[2]; /* HTTP/2, per direction: bytes of a frame header that was cut */
  u8 pad;
  u32 events; /* calls of the answer's direction that ended with a server-sent event */
  u32 requests;
  u64 in_ns; /* last byte */
  u64 out_ns;
  u64 turn_ns; /* last change of direction */
  u64 in_bytes;
  u64 out_bytes;
  u64 in_tail; /* last bytes in, the last one in the highest byte; others than \r, \n and 0 are 0 */
  u64 out_tail;
  u64 response_ns;  /* when the answer to the current request began; 0 = not yet */
  u64 response_at;  /* total of the answer's direction at that moment, before it */
  u64 request_ns;   /* when the first byte of the current request was read or written */
  u64 request_in;   /* totals at that moment, before it */
  u64 request_out;
  u64 last_head_at; /* bytes of the request's direction before the last pipelined head, since the request began */
  u32 request_head;
  u32 response_head;
  u32 responses;
  u32 answers;   /* since the current request began */
  u32 interim;   /* 1xx answers of the current request */
  u32 pipelined; /* heads that began before an answer to the one before */
  u64 opened_ns;
  u64 ended_ns;    /* end of input, reset or shutdown, the first of them */
  u32 skip[2];     /* HTTP/2, per direction: bytes of the current frame still to come */
  u32 last_stream; /* highest stream that the client side opened */
  u32 streams_opened;
  u32 streams_closed;
  u32 pad2;
  u8 frame[64]; /* HTTP/2, 32 per direction: the frame header so far */
};

/* The first bytes of one message, until user space has parsed them. */
struct head {
  u64 connection;
  u32 sequence; /* number of the request or answer on its connection, from 1 */
  u32 length;
  u32 kind;
  u32 pad;
  u8 bytes[HEAD_BYTES + HEAD_PIECE];
};

/* One HTTP/2 stream that is open. */
struct stream {
  u64 connection;
  u64 number;
};

struct stream_state {
  u64 opened_ns;
  u64 answered_ns; /* first frame of the answer; 0 = none yet */
};

#define WAKERS 4

/* One thread of a watched process. */
struct thread {
  u64 off_ns;     /* when it last left its CPU by itself, that is, began to wait */
  u64 timeout_ns; /* of the futex wait that it is in, as it was given, by its operation: a time or a moment; 0 = none */
  u32 tgid;
  u32 pad;
};

struct futex {
  u64 address;
  u32 tgid;
  u32 pad;
};

/* What went on at one address. */
struct futex_state {
  u64 waits; /* that ended */
  u64 wait_ns;
  u64 wakes;
  u64 woken; /* threads */
  u64 last_wake_ns;
  u32 wakers[WAKERS]; /* threads, the next one to be replaced is wakes % WAKERS */
};

/* What is written by user space for the programs. */
struct control {
  u64 sweep;
};

/* Indices of `counters`. */
enum counter {
  REQUESTS,
  RESPONSES,
  LOST_REQUESTS,    /* seen on a connection that found no room */
  LOST_CONNECTIONS, /* no room, or over the quota of its process */
  LOST_HEADS,       /* no free head, or over the quota: method and path of one message are not known */
  LOST_PROCESSES,
  LOST_STREAMS,
  COUNTERS
};

#endif
