"""The always-on part: a process of its own that keeps the request ledger in the kernel and answers the workers.

`heads` and `exchange` are pure: bytes of a message -> what may be kept of it; a connection's entry -> what is in flight
on it. `ledger` reads, clears and prunes the maps; `service` is the process. Imports `bpf`, never grpc or protobuf, and
reads no memory of a target and no file that can block.
"""
