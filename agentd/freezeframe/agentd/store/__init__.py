"""Snapshots on disk: one .ffz file each in a directory of our own, a marker file beside it when it is pinned.

`directory` does the blocking work, `store` is what the daemon uses; `copier` brings copies to a `bucket` or a `folder`.
May import `judge.file`; knows nothing of gRPC.
"""

from freezeframe.agentd.store.copier import Copier, Copying
from freezeframe.agentd.store.directory import Condition, Kept
from freezeframe.agentd.store.folder import Folder
from freezeframe.agentd.store.store import LATEST, Store

__all__ = ["LATEST", "Condition", "Copier", "Copying", "Folder", "Kept", "Store"]
