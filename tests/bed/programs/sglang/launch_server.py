"""Launch one engine stand-in: ``python -m sglang.launch_server --model-path DIR --port N ...``.

Kept thin: multiprocessing's spawn imports the main module again in each child.
"""

from __future__ import annotations


def main() -> None:
    from sglang.srt.entrypoints.http_server import launch_server  # noqa: PLC0415 - see the module docstring
    from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415

    launch_server(prepare_server_args())


if __name__ == "__main__":
    main()
