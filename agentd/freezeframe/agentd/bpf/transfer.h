/* SPDX-License-Identifier: GPL-2.0-only */
/* What bytes that went over a descriptor mean for its connection. */
#ifndef FREEZEFRAME_TRANSFER_H
#define FREEZEFRAME_TRANSFER_H

#include "heads.h"
#include "http1.h"
#include "messages.h"

/* "GET / HTTP/1.0". */
#define SHORTEST_HEAD 14

/* Read a call in few iovecs with few bytes as a whole; `find_ends` has read the iovecs. */
static __always_inline bool gather(struct call *k) {
  u32 at = 0;
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < GROUP; i++) {
    struct piece v = k->iovs[i];
    u32 n = v.len < k->bytes - at ? v.len : k->bytes - at;
    k->filled = at + n;
    FORGET(at);
    FORGET(n);
    if (n && bpf_probe_read_user(k->start + (at & (SMALL - 1)), n & (SMALL - 1), (void *)v.base))
      break;
    at += n;
    if (at == k->bytes)
      return true;
    if (i + 1 >= k->count)
      break;
  }
  clear_start(k);
  return false;
}

/* Read the first bytes of a call: all, when there are few. */
static __always_inline void read_start(struct call *k) {
  if (k->iov && k->bytes < SMALL && k->group == 0 && gather(k)) {
    k->small = 1;
    return;
  }
  k->small = !k->iov && k->bytes <= SMALL;
  u32 size = k->small || k->bytes < START_BYTES ? k->bytes : START_BYTES;
  u32 n = k->first_len < size ? k->first_len : size, rest = size - n;
  k->filled = size;
  FORGET(n);
  FORGET(rest);
  if (!k->first || bpf_probe_read_user(k->start, n & (2 * SMALL - 1), (void *)k->first))
    k->small = 0;
  if (k->second && rest)
    bpf_probe_read_user(k->start + (n & 15), rest & 15, (void *)k->second);
}

/* Bytes went over a descriptor. */
static __always_inline void transfer(u64 ctx, struct watch *w, u32 tgid, u32 fd, struct call *k) {
  struct connection *c = connection_of(w, tgid, fd, &k->connection);
  /* No head is that short; what is, is an event descriptor. */
  if (!c && k->bytes < SHORTEST_HEAD)
    return;
  k->now = bpf_ktime_get_ns();
  k->group = NO_GROUP;
  k->small = 0;
  find_ends(k);
  u8 what = OTHER_BYTES;
  /* Most calls of a stream: the next event of an answer. */
  bool goes_on = c && c->protocol == HTTP1 && c->response_ns && c->direction == k->direction &&
                 k->direction == (c->side == SERVER ? OUT : IN) &&
                 ends_an_event(k->direction == IN ? c->in_tail : c->out_tail);
  if (!goes_on) {
    read_start(k);
    if (k->first)
      what = message_of(k->start);
  }
  if (!c) {
    if (what != OTHER_BYTES)
      c = open_connection(w, tgid, fd, k->now, SEEN_LATE);
    if (!c) {
      if (what == HTTP_REQUEST) {
        count(LOST_REQUESTS);
        __sync_fetch_and_add(&w->lost, 1);
      }
      clear_start(k);
      return;
    }
    k->connection = find(w, tgid, fd);
  }
  bool turned = true, frames = false;
  if (c->protocol == UNKNOWN && what != OTHER_BYTES) {
    bool asks = what == HTTP_REQUEST || what == HTTP2_PREFACE || (what == TLS_HANDSHAKE && k->start[5] == 1);
    c->side = asks == (k->direction == IN) ? SERVER : CLIENT;
    c->protocol = what == HTTP2_PREFACE ? HTTP2 : what == TLS_HANDSHAKE ? TLS : HTTP1;
    if (c->protocol == HTTP2)
      c->skip[k->direction & 1] = 24;
  }
  if (c->protocol == HTTP1)
    turned = follow_http1(w, c, k, what, k->start);
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
  k->left = k->bytes;
  k->len = k->iov ? 0 : k->bytes;
  k->next = 0;
  if (k->head != NO_HEAD && !k->small)
    /* Does what follows here, too: the end of a call is among the bytes of most heads. */
    continuations.call((void *)ctx, HEAD_BYTES_OF);
  keep_tail(c, k, k->small ? tail_of_small(k) : read_tail(k));
  if (k->head != NO_HEAD && k->small)
    move_small(k);
  clear_start(k);
  if (frames)
    continuations.call((void *)ctx, FRAMES);
}

#endif
