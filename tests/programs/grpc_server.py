"""A gRPC echo server for the ledger's tests: prints its port. /t/hang never answers."""

from __future__ import annotations

import threading
from concurrent import futures

import grpc


class Handler(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
            if details.method == "/t/hang":
                threading.Event().wait()
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


def main() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
