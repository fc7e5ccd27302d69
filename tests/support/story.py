"""The story to tell right, as one snapshot: 30 requests of a harness hang while a stray client streams."""

from __future__ import annotations

from google.protobuf import text_format

from freezeframe.judge import file
from freezeframe.v1 import snapshot_pb2

STORY = """
meta {
  snapshot_id: "gpu-07-20260102T030405678Z-abcd" host: "gpu-07" agent_version: "0.1.0"
  started_at: "2026-01-02T03:04:05.678Z" duration_ms: 1612.4 trigger: "snap" window_ms: 1000 schema: 1
}
outcomes { collector: "snapshot_processes" status: OK duration_ms: 24 items: 9 }
outcomes { collector: "snapshot_sockets" status: OK duration_ms: 31.5 items: 142 }
outcomes {
  collector: "snapshot_python_stacks" status: PARTIAL detail: "py-spy of pid 5100: permission denied"
  hint: "sudo setcap cap_sys_ptrace+ep $(command -v py-spy), or run the agent as root" duration_ms: 310 items: 7
  pids_missed: 5100
}
outcomes {
  collector: "snapshot_gpus" status: UNAVAILABLE detail: "no NVML library on this host"
  hint: "install the NVIDIA driver"
}
processes {
  pid: 4242 role: CLIENT title: "python harness.py" state: "S" age_ms: 900000 rss_bytes: 81000000 thread_count: 4
  cpu_ms_delta: 0
}
processes {
  pid: 4300 role: CLIENT title: "curl -N http://127.0.0.1:30000/v1/completions" state: "S" age_ms: 61000
  rss_bytes: 9000000 thread_count: 1 cpu_ms_delta: 3
}
processes {
  pid: 4711 role: ROUTER title: "sglang::router" state: "S" age_ms: 7200000 rss_bytes: 93000000 thread_count: 4
  unit: "router.service" cpu_ms_delta: 11
  threads { tid: 4711 name: "sglang::router" state: "S" wchan: "futex_do_wait" syscall: "futex" }
}
processes {
  pid: 5000 role: ENGINE_HTTP title: "sglang::http prefill" state: "S" age_ms: 7100000 disaggregation: "prefill"
  rss_bytes: 2100000000 thread_count: 17
}
processes {
  pid: 5100 role: ENGINE_HTTP title: "sglang::http decode" state: "S" age_ms: 7100000 disaggregation: "decode"
  rss_bytes: 2100000000 thread_count: 17 container: "3f4c1b2a99d0e1" pod: "decode-0"
}
sockets { family: "tcp" state: "ESTAB" local: "127.0.0.1:30000" remote: "127.0.0.1:51000" pid: 4711 fd: 21
  peer_pid: 4242 last_in_age_ms: 264599.869 bytes_in_delta: 0 lasting: true }
sockets { family: "tcp" state: "ESTAB" local: "127.0.0.1:41000" remote: "127.0.0.1:31000" pid: 4711 fd: 22
  peer_pid: 5000 last_out_age_ms: 264599.5 peer_window_bytes: 65536 lasting: true }
sockets { family: "tcp" state: "LISTEN" local: "0.0.0.0:30000" pid: 4711 fd: 9 backlog: 0 backlog_limit: 4096 }
requests {
  pid: 4242 fd: 7 side: CLIENT method: "POST" path: "/v1/chat/completions" request_id: "bench-7" age_ms: 264600.1
  at_least: true last_out_age_ms: 264600.1 peer_pid: 4711 upstream: "requests[1]" source: "socket" joined_by: "id"
}
requests {
  pid: 4711 fd: 21 side: SERVER method: "POST" path: "/v1/chat/completions" request_id: "bench-7" age_ms: 264599.869
  at_least: true last_in_age_ms: 264599.869 peer_pid: 4242 source: "socket"
}
log_requests { pid: 4711 request_id: "bench-7" method: "POST" path: "/v1/chat/completions" age_ms: 264600 }
log_requests {
  pid: 4711 request_id: "bench-1" method: "POST" path: "/v1/chat/completions" age_ms: 400000 finished: true
  latency_ms: 2003.52 status: 200
}
python_threads {
  pid: 4242 tid: 4242 name: "MainThread" same_at_second_look: true
  frames { function: "select" file: "/usr/lib/python3.11/selectors.py" line: 468 }
  frames { function: "main" file: "/srv/harness.py" line: 88 }
}
python_threads {
  pid: 4242 tid: 4250 name: "worker-1" same_at_second_look: true
  frames { function: "select" file: "/usr/lib/python3.11/selectors.py" line: 468 }
  frames { function: "main" file: "/srv/harness.py" line: 88 }
}
metrics {
  name: "sglang:num_running_reqs" labels { key: "engine_type" value: "decode" } value: 0 age_ms: 812 delta: 0 pid: 5100
  source: "http 127.0.0.1:32000/metrics"
}
metrics { name: "sglang:gen_throughput" value: 53.2 pid: 5100 source: "http 127.0.0.1:32000/metrics" }
endpoints { pid: 5000 address: "127.0.0.1:31000" path: "/health" error: "no answer" duration_ms: 1000
  purpose: "liveness" }
endpoints { pid: 5100 address: "127.0.0.1:32000" path: "/health" status: 200 duration_ms: 3.2 purpose: "liveness" }
log_findings {
  pattern: "router_decode_failed" meaning: "the decode leg of a request ended with an error" pid: 4711 count: 30
  last_age_ms: 264000 captured { key: "status" value: "500" }
}
log_sources { pid: 4711 kind: "file" name: "/var/log/router.log" bytes_read: 1048576 lines: 9120 covers_ms: 3600000
  bytes_skipped: 52428800 lines_cut: 2 }
host {
  kernel: "6.18.0" cpus: 64 load: 3.5 load: 4.0 load: 4.25 memory_total_bytes: 1.1e12 memory_available_bytes: 4.0e11
  uptime_ms: 864000000 distribution: "Debian GNU/Linux 12" architecture: "x86_64" oom_kills: 0 oom_kills_delta: 0
  pressure { resource: "cpu" some_avg10: 1.5 some_avg60: 1.2 some_window: 0.4 }
  filesystems { mount: "/var/lib" size_bytes: 1.0e12 available_bytes: 2.5e11 purpose: "state directory" }
}
hops { name: "client" pids: 4242 in_flight: 30 upstream: 30 oldest_age_ms: 264600.1 source: "sockets" next: "router" }
hops { name: "router" pids: 4711 in_flight: 30 upstream: 30 holds: true oldest_age_ms: 264599.869 source: "sockets"
  next: "prefill" next: "decode" }
hops { name: "prefill" pids: 5000 in_flight: 30 oldest_age_ms: 264599.5 source: "sockets" }
hops { name: "decode" pids: 5100 in_flight: 0 source: "sockets" }
edges { client_pid: 4242 server_pid: 4711 server_address: "127.0.0.1:30000" connections: 30 owed: 30
  oldest_owed_age_ms: 264600.1 bytes_up_delta: 0 bytes_down_delta: 0 moving: 0 }
edges { client_pid: 4300 server_pid: 5100 server_address: "127.0.0.1:32000" connections: 1 owed: 1
  oldest_owed_age_ms: 60000 bytes_up_delta: 0 bytes_down_delta: 5123 moving: 1 }
verdict {
  code: ROUTER_DUAL_LEG hop: "router" holder_pids: 4711 confidence: HIGH explains: 30
  summary: "The router holds 30 requests: their decode leg ended, and it still waits for a prefill leg that is silent."
  evidence {
    text: "30 requests came in and none was answered for at least 264.6 s" ref: "sockets[0] requests[1]"
  }
  evidence { text: "its 30 connections to prefill sent a request and got no byte back" ref: "sockets[1]" }
  evidence { text: "its log has 30 decode legs that ended with status 500" ref: "log_findings[0]" }
  ruled_out {
    hop: "decode" evidence { text: "no connection owes an answer, its gauges count 0 running" ref: "metrics[0]" }
  }
  ruled_out {
    hop: "scheduler of decode"
    evidence { text: "queue 0, running 0" ref: "metrics[0]" }
    evidence { text: "53 tok/s belong to the stray client, pid 4300" ref: "edges[1]" }
  }
  unknowns: "GPU state: snapshot_gpus had no NVML library"
  unknowns: "What prefill does inside: py-spy was not allowed for pid 5100"
  attribution {
    client: "python harness.py" pid: 4242 requests_in_flight: 30 oldest_age_ms: 264600.1 bytes_per_s: 0 connections: 30
    talks_to: "router"
  }
  attribution {
    client: "curl -N http://127.0.0.1:30000/v1/completions" pid: 4300 requests_in_flight: 1 oldest_age_ms: 60000
    bytes_per_s: 5123 tokens_per_s: 53.2 stray: true connections: 1 talks_to: "decode" bypasses_router: true
  }
  next_steps: "tail -n 200 /var/log/decode.log  # the 500 that ended the leg"
  next_steps: "freezeframe show FILE native  # what the router's threads do"
  next_steps: "Known kind: a pair of which one leg ended"
}
findings { code: ROUTER_DUAL_LEG explains: 30 confidence: HIGH hop: "router" holder_pids: 4711 summary: "As above." }
findings {
  code: ENGINE_HTTP_BLOCKED explains: 30 confidence: MEDIUM hop: "prefill" holder_pids: 5000
  summary: "The liveness endpoint of prefill is silent." evidence { text: "no answer in 1.0 s" ref: "endpoints[0]" }
}
"""


def story() -> snapshot_pb2.Snapshot:
    return text_format.Parse(STORY, snapshot_pb2.Snapshot())


def story_bytes() -> bytes:
    return file.write([story()], "freezeframe-tests 0")
