"""``python -m tests.bed up WEDGE [--clients N] [--stray] [--regular]`` and ``python -m tests.bed wedges``."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from typing import Any, NoReturn

from tests.bed.bed import Bed
from tests.bed.routers import NATIVE_NAME, ROUTERS
from tests.bed.wedges import WEDGES


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bed", description="A real router between a harness and engine stand-ins."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser(
        "up", help="start a bed, print one line of JSON when the wedge is in force, run until Ctrl-C or end of input"
    )
    up.add_argument("wedge", choices=[wedge.name for wedge in WEDGES])
    up.add_argument("--clients", type=int, default=30)
    up.add_argument("--stray", action="store_true", help="a stray client streams as well")
    up.add_argument("--stray-via", choices=["engine", "router"], default="engine")
    up.add_argument("--regular", action="store_true", help="two unified engines instead of prefill and decode")
    up.add_argument("--router", choices=[*ROUTERS, NATIVE_NAME], default="sglang-router")
    up.add_argument("--engine", help="which engine an engine's wedge is in")
    up.add_argument("--detach-input", action="store_true", help="do not end at the end of input")
    commands.add_parser("wedges", help="list the wedges")
    return parser.parse_args()


def end(_signum: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def run(args: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, end)
    with Bed.start(
        args.wedge,
        clients=args.clients,
        stray=args.stray,
        stray_via=args.stray_via,
        regular=args.regular,
        router=args.router,
        engine=args.engine,
    ) as bed:
        bed.wait_wedged()
        print(json.dumps(bed.describe()), flush=True)
        while True:
            ready, _, _ = select.select([] if args.detach_input else [sys.stdin], [], [], 3600)
            if ready and not os.read(sys.stdin.fileno(), 65536):
                return


def main() -> None:
    args = parse()
    if args.command == "wedges":
        for wedge in WEDGES:
            print(f"{wedge.name:28} {wedge.about}")
        return
    try:
        run(args)
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
