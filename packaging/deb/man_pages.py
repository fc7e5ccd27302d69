"""Writes the man pages of both commands, and of each of their commands, into a directory: man_pages.py DIRECTORY."""

from __future__ import annotations

import sys
from importlib.metadata import version

from click_man.core import write_man_pages

from freezeframe.agentd.daemon import command
from freezeframe.client.cli import cli

if __name__ == "__main__":
    for name, each in (("freezeframe", cli), ("freezeframe-agentd", command)):
        write_man_pages(name, each, version=version("freezeframe"), target_dir=sys.argv[1])
