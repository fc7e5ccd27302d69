/* SPDX-License-Identifier: GPL-2.0-only */
/* The first bytes of each message, for user space to parse. */
#ifndef FREEZEFRAME_HEADS_H
#define FREEZEFRAME_HEADS_H

#include "call.h"

/* Filled here, parsed, cleared and freed by user space, which maps it. */
BPF_F_TABLE("array", u32, struct head, heads, HEADS, 1024 /* BPF_F_MMAPABLE */);
struct head_states { u8 state[HEADS]; };
BPF_F_TABLE("array", u32, struct head_states, head_states, 1, 1024);
/* Free heads. Pushed by user space, popped here: the one that was freed last, which is warm. */
BPF_STACK(free_heads, u32, HEADS);
BPF_F_TABLE("array", u32, struct control, control, 1, 1024);

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

/* Move what is in `start` as a whole behind what the head has. */
static __always_inline void move_small(struct call *k) {
  u32 index = k->head;
  struct head *h = heads.lookup(&index);
  if (!h || h->connection != k->connection || h->length >= HEAD_BYTES)
    return;
  u32 at = h->length;
  FORGET(at);
  at &= HEAD_BYTES - 1;
  u8 *to = h->bytes + at;
  /* Not by a call of the kernel, which costs more than the bytes. Behind the end both are zero. */
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < SMALL; i += 32) {
    if (i >= k->filled)
      break;
#pragma unroll
    for (u32 j = 0; j < 32; j += 8) {
      *(u64 *)(to + i + j) = *(u64 *)(k->start + i + j);
      *(u64 *)(k->start + i + j) = 0;
    }
  }
  h->length = at + k->filled;
  k->filled = 0;
}

/* Copy from where the bytes are. */
static __always_inline void copy_pieces(struct head *h, struct call *k) {
#pragma clang loop unroll(disable)
  for (u32 i = 0; i < HEAD_PIECES; i++) {
    u32 at = h->length;
    if (!k->left || at >= HEAD_BYTES)
      return;
    if (!k->len) {
      struct piece v;
      if (!read_iovec(k, k->next, &v))
        return;
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
      return;
    h->length = at + n;
    k->base += n;
    k->len -= n;
    k->left -= n;
  }
}

/* The first bytes of a message, from the call that `transfer` left behind; and the end of that call. */
static __always_inline void fill_head(struct connection *c, struct call *k) {
  u32 index = k->head, have;
  /* 64 bits: of 32 some compilers make two registers, and the verifier sees the bound of one of them only. */
  u64 end;
  struct head *h = heads.lookup(&index);
  bool own = h && h->connection == k->connection;
  if (own) {
    copy_pieces(h, k);
    if (k->left && h->length < HEAD_BYTES)
      c->flags |= HEAD_GAP;
  }
  end = own && !k->left && k->bytes >= TAIL_BYTES ? h->length - TAIL_BYTES : HEAD_BYTES + HEAD_PIECE;
  FORGET(end);
  if (k->small) {
    have = tail_of_small(k);
  } else if (end <= HEAD_BYTES + HEAD_PIECE - TAIL_BYTES) {
    __builtin_memcpy(&k->tail, h->bytes + end, TAIL_BYTES);
    have = TAIL_BYTES;
  } else {
    have = read_tail(k);
  }
  keep_tail(c, k, have);
  clear_start(k);
}

#endif
