/* SPDX-License-Identifier: GPL-2.0-only */
/* HTTP/1.x: requests and answers, by how calls begin. */
#ifndef FREEZEFRAME_HTTP1_H
#define FREEZEFRAME_HTTP1_H

#include "heads.h"
#include "messages.h"

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

#endif
