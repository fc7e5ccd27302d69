/* SPDX-License-Identifier: GPL-2.0-only */
/* Watched processes, their descriptors and connections, and what is counted. */
#ifndef FREEZEFRAME_CONNECTIONS_H
#define FREEZEFRAME_CONNECTIONS_H

#include "ledger.h"

/* tgid -> watch. Inserted at its first connect, listen or accept and by user space; deleted by user space after exit. */
BPF_HASH(watched, u32, struct watch, MAX_PROCESSES);
/* (tgid, fd) -> connection. Inserted with it and by dup; deleted by close and by user space. */
BPF_HASH(descriptors, struct descriptor, struct reference, MAX_CONNECTIONS);
/* Inserted by connect, accept, or the first head on a descriptor; deleted by the last close, by user space when the
   process has ended, and, answered and idle, when room is needed. Read by user space. Never LRU: the oldest are stuck. */
BPF_HASH(connections, u64, struct connection, MAX_CONNECTIONS);
/* The connection that a descriptor led to last, by its number: a cache line where the tables take four. It counts only if
   the connection itself says the same, so it may be out of date. */
BPF_ARRAY(recent, u64, RECENT);
BPF_TABLE("percpu_array", u32, u64, counters, COUNTERS);
/* Zeros, copied into new entries: too large for the stack. */
BPF_ARRAY(blank, struct connection, 1);


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

/* In `recent`. */
static __always_inline u32 place_of(u32 tgid, u32 fd) {
  return (tgid * 31 + fd) & (RECENT - 1);
}

static __always_inline u64 find(struct watch *w, u32 tgid, u32 fd) {
  struct descriptor d = {.tgid = tgid, .fd = fd};
  struct reference *r = descriptors.lookup(&d);
  return r && r->generation == w->generation ? r->connection : 0;
}

/* The connection of a descriptor, and its number. One that several descriptors lead to does not say which. */
static __always_inline struct connection *connection_of(struct watch *w, u32 tgid, u32 fd, u64 *id) {
  u32 place = place_of(tgid, fd);
  u64 *last = recent.lookup(&place);
  if (!last)
    return NULL;
  *id = *last;
  struct connection *c = *id ? connections.lookup(id) : NULL;
  if (c && c->fd == fd && c->tgid == tgid && c->generation == w->generation && c->references == 1)
    return c;
  *id = find(w, tgid, fd);
  c = *id ? connections.lookup(id) : NULL;
  if (c)
    *last = *id;
  return c;
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
    u32 place = place_of(tgid, fd);
    u64 *last = recent.lookup(&place);
    if (last)
      *last = 0;
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

#endif
