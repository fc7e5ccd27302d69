/* SPDX-License-Identifier: GPL-2.0-only */
/* HTTP/2: streams that open and end, by frame headers. */
#ifndef FREEZEFRAME_HTTP2_H
#define FREEZEFRAME_HTTP2_H

#include "call.h"

/* Open HTTP/2 streams. Inserted and deleted here; deleted by user space with their connection. */
BPF_HASH(streams, struct stream, struct stream_state, MAX_STREAMS);

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
      struct piece v;
      if (!read_iovec(k, k->next, &v)) {
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

#endif
