"""All that is done to a snapshot before it leaves. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.client.report.anonymise import anonymise as without_names
from freezeframe.client.report.redact import Redacted, redact
from freezeframe.v1 import snapshot_pb2


def clean(snapshots: Sequence[snapshot_pb2.Snapshot], key: bytes, *, anonymise: bool) -> Redacted:
    """Take secrets out, and names where `anonymise` asks for it."""
    redacted = redact(snapshots, key)
    if not anonymise:
        return redacted
    anonymous = without_names(redacted.snapshots, key)
    return Redacted(snapshots=anonymous.snapshots, tokens={**redacted.tokens, **anonymous.tokens})


def remark(cleaned: Redacted, *, anonymised: bool) -> str:
    """Say what was done, for the reader of a report."""
    secrets = sum(token.startswith("SECRET-") for token in cleaned.tokens)
    said = f"Redacted by freezeframe; secrets that became tokens (SECRET-…, equal ones equal): {secrets}."
    return f"{said} Host names, addresses, users and directories are tokens too." if anonymised else said
