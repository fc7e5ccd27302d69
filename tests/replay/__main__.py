"""``python -m tests.replay``: judge every case and print the table; ``record``: take the bed's snapshots anew."""

from __future__ import annotations

import argparse
import sys

from tests.bed.routers import ROUTERS
from tests.replay.cases import cases, judge, table
from tests.replay.healthy import SEED, replays
from tests.replay.record import record


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    taking = commands.add_parser("record", help="take the snapshots of the bed anew (root, 15 minutes)")
    taking.add_argument("names", nargs="*", help="wedges or healthy states; all when none is named")
    taking.add_argument("--router", choices=list(ROUTERS), help="behind this one only")
    args = parser.parse_args()
    if args.command == "record":
        record(args.names, [args.router] if args.router else list(ROUTERS))
    known = cases()
    judged = [judge(case) for case in known]
    print(table(judged))
    seen = list(replays(known))
    accused = [replay.line() for replay in seen if replay.accuses]
    print(f"\nhealth with evidence taken away (seed {SEED}): {len(seen)} replays, {len(accused)} accusations.")
    print("\n".join(accused))
    return int(bool(accused) or any(each.how == "wrong" for each in judged))


if __name__ == "__main__":
    sys.exit(main())
