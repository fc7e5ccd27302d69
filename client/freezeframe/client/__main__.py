"""`python -m freezeframe.client`."""

from __future__ import annotations

from freezeframe.client.cli import main

if __name__ == "__main__":
    main()
