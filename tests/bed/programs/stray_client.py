"""A client that nobody thinks of: one long streamed answer after another, about 50 tokens per second."""

from __future__ import annotations

import sys

from harness import main, parse

if __name__ == "__main__":
    main(parse(sys.argv[1:], clients=1, tokens=512, name="stray"))
