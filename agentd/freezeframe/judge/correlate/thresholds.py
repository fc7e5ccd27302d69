"""The limits that decide what counts as stuck, each with its reason. Milliseconds unless the name says otherwise."""

from __future__ import annotations

# A request owed for less is no evidence: a busy healthy system always has such requests, bytes cross in flight between
# two reads, and a capture itself takes 100 to 200 ms.
STUCK_MS = 1_000.0

# From this age on, silence speaks without a second witness. A long prefill of a healthy engine takes seconds, and
# SGLang counts its tokens only when it is over.
LONG_MS = 10_000.0

# Bytes that went out this recently are movement that one look alone shows.
RECENT_MS = 500.0

# uvicorn's keep-alive, which SGLang and vLLM keep, closes an idle connection after 5 s: one that is still open and
# quiet after twice that belongs to an answer that has not ended.
ENGINE_KEEP_ALIVE_MS = 10_000.0

# The routers drop an idle pooled connection after 50 s.
ROUTER_POOL_IDLE_MS = 60_000.0

# The routers give up a health check after 5 s; a younger upstream request without a client may be one.
HEALTH_CHECK_MS = 10_000.0

# A process younger than this is still starting: an engine listens long before it serves.
STARTING_MS = 10_000.0

# A health check of SGLang is a request of one token or a few: so many tokens in a window show nobody's progress.
HEALTH_TOKENS = 16.0

# Bytes that a client may leave unread after the end of an answer, such as the last chunk after "[DONE]".
LEFTOVER_BYTES = 1024.0

# A comment that keeps a stream alive is shorter than this (13 bytes of smg, some 50 of sse-starlette); an event with a
# token is longer.
KEEP_ALIVE_BYTES = 64.0

# smg and sse-starlette send one this often.
KEEP_ALIVE_EVERY_MS = 15_000.0

# The agent's own probes come from this address of this host: one that a server never accepts stays in its queue.
PROBE_ADDRESS = "127.70.70.70"

# Such a question stands there, so that no other was asked: in the error of an endpoint.
EARLIER_QUESTION = "an earlier question still waits in the accept queue"

# A thread that sleeps in a poll of a second wakes so often per second at most; one whose loop turns, at least so often.
RESTING_WAKES, TURNING_WAKES = 3.0, 10.0

# Share of the requests that may be under way between two hops when the counts of the hops are compared.
SLACK = 0.1

# A GPU on which a kernel spins says that it is in use all the time, and draws little for that (vllm#41725, vllm#46097:
# 96 % at low power). The share of its power limit is a cautious guess: no such GPU was at hand.
SPINS_PERCENT, SPIN_POWER = 90.0, 0.4

# Share of the window in CPU time below which a thread did not work.
ASLEEP = 0.02

# Share of the window in CPU time from which a thread did nothing else.
BUSY = 0.85

# Share of the window in CPU time below which a thread that wanted to run all the time was starved.
STARVED = 0.1

# Share of the window in which a thread was ready to run and had no CPU, from which it got too little; and the share in
# CPU time from which it got something done nevertheless.
DELAYED, GOT_ON = 0.6, 0.25

# Share of the window in CPU time from which a thread that should admit requests goes round.
LIVELOCK = 0.7

# Gauges of SGLang are written again every 30 s by an idle scheduler; older ones say nothing about now.
GAUGE_STALE_MS = 35_000.0

# SGLang's load snapshot is written each second, idle too; a batch may keep its scheduler for longer.
LOAD_STALE_MS = 5_000.0


def slack(count: int) -> int:
    """How many of `count` requests may be missing at the next hop without meaning anything; at least one."""
    return max(1, round(count * SLACK))
