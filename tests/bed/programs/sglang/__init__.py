"""A stand-in for the SGLang engine, for machines without a GPU. It is not SGLang.

What it keeps of the real engine: the launch command line, the processes and their titles (HTTP server with tokenizer
manager, scheduler, detokenizer, multiprocessing's resource tracker), uvicorn on uvloop with a 5 s keep-alive, zmq
PUSH/PULL over unix sockets with random names, no high-water mark, the names of functions on the loops, the path of a
request (HTTP, tokenizer, scheduler, detokenizer, tokenizer, HTTP), prefill and decode roles with a handshake per
request between their schedulers, metrics in prometheus_client's multiprocess mode under the real names and labels,
gauges that are written with a log line and at most every 30 s when idle (so they go stale as the real ones do), the
log lines of batches.

What it does not model: computing anything (a batch is a sleep), KV memory, several ranks, overlap scheduling, radix
cache, the bootstrap server (here one zmq TCP socket on the bootstrap port, held by the prefill scheduler), KV
transfer as bytes, bootstrap and waiting timeouts, the load snapshot in /dev/shm, request retraction. A decode engine
serves a request without a bootstrap room alone, like a unified engine.
"""
