/* SPDX-License-Identifier: GPL-2.0-only */
/* The bytes of one system call: where they are, how they begin and how they end. */
#ifndef FREEZEFRAME_CALL_H
#define FREEZEFRAME_CALL_H

#include "connections.h"

/* Have the compiler forget what it knows of a number, so that it keeps the mask that the verifier wants to see. */
#define FORGET(x) __asm__ __volatile__("" : "+r"(x))


/* A read of user memory costs more than the bytes that it reads: 100 ns on some machines. So iovecs are read in groups,
   and a call in one buffer that is no longer than SMALL at once as a whole. */
#define GROUP 4
#define SMALL HEAD_PIECE
#define START_BYTES 15
#define TAIL_BYTES 8
/* "\r\n0\r\n\r\n". */
#define LONGEST_END 7
#define ENDS 3

/* Bytes of one call that lie together; an iovec. */
struct piece { u64 base, len; };

/* One transfer of bytes. `iov` is 0 for one plain buffer. */
struct call {
  u64 now, iov, base, bytes;
  u64 first, first_len, second; /* where its first bytes are */
  struct piece ends[ENDS];      /* its last ones, the last one first; without length where there are none, or not found */
  u64 connection;
  u64 left, len; /* where the program that goes on is */
  u64 tail;
  u32 count, direction, next;
  u32 head;  /* where the bytes go to, NO_HEAD when nowhere */
  u32 group; /* the group of iovecs that was read last, NO_GROUP when none was */
  u32 small; /* all of it is in `start` */
  u32 filled; /* bytes in `start`, which is zero behind them */
  struct piece iovs[2 * GROUP]; /* that group, and as much room for what the verifier takes for possible */
  u8 start[2 * SMALL]; /* its first bytes */
};
#define NO_GROUP 0xffffffffu
/* The call at hand, for the programs that continue with it. Here and not on the stack also so that the verifier, which
   follows what it knows of stack slots through every branch, comes to an end. */
BPF_TABLE("percpu_array", u32, struct call, current_call, 1);
BPF_PROG_ARRAY(continuations, 2);
enum continuation { FRAMES, HEAD_BYTES_OF };


/* Read an iovec of the call; whether there is one. */
static __always_inline bool read_iovec(struct call *k, u32 number, struct piece *found) {
  if (!k->iov || number >= k->count)
    return false;
  u32 group = number / GROUP, place = number & (GROUP - 1);
  if (group != k->group) {
    u32 size = k->count - group * GROUP;
    size = (size < GROUP ? size : GROUP) * sizeof(struct piece);
    FORGET(size);
    if (bpf_probe_read_user(k->iovs, size & (2 * GROUP * sizeof(struct piece) - 1),
                            (void *)(k->iov + group * GROUP * sizeof(struct piece))))
      return false;
    k->group = group;
  }
  FORGET(place);
  *found = k->iovs[place & (GROUP - 1)];
  return true;
}

/* Find where the first and the last bytes of a call are. */
static __always_inline void find_ends(struct call *k) {
  k->ends[0].len = k->ends[1].len = k->ends[2].len = 0;
  k->first = k->second = 0;
  if (!k->iov) {
    k->first = k->ends[0].base = k->base;
    k->first_len = k->ends[0].len = k->base ? k->bytes : 0;
    return;
  }
  u64 left = k->bytes;
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SEGMENTS; i++) {
    struct piece v;
    if (!read_iovec(k, i, &v))
      break;
    if (!v.len)
      continue;
    if (!k->first) {
      k->first = v.base;
      k->first_len = v.len;
    } else if (!k->second) {
      k->second = v.base;
    }
    k->ends[2] = k->ends[1];
    k->ends[1] = k->ends[0];
    k->ends[0].base = v.base;
    k->ends[0].len = v.len < left ? v.len : left;
    left -= k->ends[0].len;
    if (!left)
      return;
  }
  k->ends[0].len = 0;
}

/* The last bytes of a call, the last one in the highest byte, into `tail`: gives how many were found, up to 8. */
static __always_inline u32 read_tail(struct call *k) {
  u32 have = 0;
  u64 tail = 0;
#pragma unroll
  for (u32 i = 0; i < ENDS; i++) {
    u64 len = k->ends[i].len, read = 0;
    if (!len || have >= LONGEST_END)
      break;
    u32 n = len < TAIL_BYTES - have ? len : TAIL_BYTES - have;
    FORGET(n);
    n &= 15;
    /* What is before a short piece in memory is no part of what was said. */
    if (n > TAIL_BYTES || bpf_probe_read_user(&read, n, (void *)(k->ends[i].base + len - n)))
      return 0;
    tail |= read << (8 * (TAIL_BYTES - have - n) & 63);
    have += n;
  }
  k->tail = tail;
  return have;
}

/* Whether this is how a chunk ends that holds a server-sent event: an empty line, then the end of the chunk. What comes
   next is another chunk, and no head. */
static __always_inline bool ends_an_event(u64 tail) {
  return (u32)(tail >> 32) == ('\n' | '\n' << 8 | '\r' << 16 | '\n' << 24) ||
         (tail >> 16) == ('\r' | '\n' << 8 | '\r' << 16 | (u64)'\n' << 24 | (u64)'\r' << 32 | (u64)'\n' << 40);
}

/* 0x80 in each byte that is this sign. */
static __always_inline u64 places_of(u64 bytes, u8 sign) {
  const u64 low = 0x7f7f7f7f7f7f7f7f;
  bytes ^= 0x0101010101010101 * sign;
  return ~(((bytes & low) + low) | bytes | low);
}

/* Keep the last bytes of a call, which are in `tail`: of what is said only the signs that end a chunk. */
static __always_inline void keep_tail(struct connection *c, struct call *k, u32 have) {
  u64 *tail = k->direction == IN ? &c->in_tail : &c->out_tail;
  u64 said = k->tail;
  k->tail = 0;
  if (!have) {
    *tail = UNKNOWN_TAIL;
    return;
  }
  said &= ((places_of(said, '\r') | places_of(said, '\n') | places_of(said, '0')) >> 7) * 0xff;
  said = have < TAIL_BYTES && have == k->bytes ? (*tail >> (8 * have & 63)) | said : said;
  *tail = said;
  if (ends_an_event(said) && k->direction == (c->side == SERVER ? OUT : IN))
    c->events++;
}

/* The last bytes of a call that is in `start` as a whole, as `read_tail` gives them. */
static __always_inline u32 tail_of_small(struct call *k) {
  u32 n = k->bytes;
  if (n < TAIL_BYTES) {
    k->tail = n ? *(u64 *)k->start << (8 * (TAIL_BYTES - n) & 63) : 0;
    return n;
  }
  n -= TAIL_BYTES;
  FORGET(n);
  k->tail = *(u64 *)(k->start + (n & (SMALL - 1)));
  return TAIL_BYTES;
}

/* Leave nothing in `start`. */
static __always_inline void clear_start(struct call *k) {
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SMALL; i += 32) {
    if (i >= k->filled)
      break;
    __builtin_memset(k->start + i, 0, 32);
  }
  k->filled = 0;
}

#endif
