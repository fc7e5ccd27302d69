"""What agent and client share: the model, the correlation, the verdict, the wire and the file. No I/O.

A snapshot is judged by the same code whether it was just taken, comes from a file of last year or from many hosts.
May import nothing of freezeframe but freezeframe.v1, and that in `wire` and `file` alone.
"""

from __future__ import annotations

# Rises with every release that adds fields; a reader never refuses a higher one, it only cannot show what is new.
SCHEMA = 1
