"""A snapshot without its secrets. Pure.

Every text of the message is read; those of a repeated field (arguments, frames) are read as lines of one text too. What
was found in one place is taken out of every other. Numbers, pids, addresses, ids, hashes and names of metrics stay.
One token stands for one secret, by a key: equal secrets stay equal, and without the owner's map nobody can tell which.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from freezeframe.client.report import secrets
from freezeframe.client.report.texts import texts_of
from freezeframe.v1 import snapshot_pb2

# An environment variable that may show its value.
_ENVIRONMENT = re.compile(r"(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.+)", re.DOTALL)
_SHOWN = re.compile(
    r"(?:NCCL|CUDA|OMP|UCX|GLOO|TORCH_NCCL|NVSHMEM)_\w+|(?:LOCAL_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)"
)


# The kernel keeps as many bytes of a thread's name.
_OF_A_NAME = 15
_NAMES = frozenset({"comm", "name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """Snapshots without secrets."""

    snapshots: tuple[snapshot_pb2.Snapshot, ...]
    # Token -> what it stands for: for the owner alone.
    tokens: dict[str, str] = field(default_factory=dict)


def redact(snapshots: Sequence[snapshot_pb2.Snapshot], key: bytes) -> Redacted:
    """Take the secrets out of `snapshots`, which stay as they are; tokens follow from `key`."""
    copies = tuple(_copy(snapshot) for snapshot in snapshots)
    known: set[str] = set()
    # Frames and states repeat by the thousand.
    look = functools.cache(_found)
    for copy in copies:
        for texts, orderly, name, _ in texts_of(copy):
            known.update(found.value for found in look(tuple(texts), None, name, orderly=orderly))
    pattern = secrets.pattern_of({value for value in known if secrets.is_value(value)})
    begin = {form[:_OF_A_NAME]: value for value in known for form in secrets.forms(value) if len(form) > _OF_A_NAME}
    tokens: dict[str, str] = {}

    def token(value: str) -> str:
        made = "SECRET-" + hmac.new(key, value.encode(), hashlib.sha256).hexdigest()[:10]
        tokens[made] = value
        return made

    for copy in copies:
        for texts, orderly, name, put in texts_of(copy):
            found = look(tuple(texts), pattern, name, orderly=orderly)
            if name in _NAMES and not found and (value := begin.get(texts[0])):
                found = (secrets.Found(begin=0, end=len(texts[0]), value=value),)
            if found:
                put(_replaced(texts, found, token))
    return Redacted(snapshots=copies, tokens=tokens)


def _copy(snapshot: snapshot_pb2.Snapshot) -> snapshot_pb2.Snapshot:
    copy = snapshot_pb2.Snapshot()
    copy.CopyFrom(snapshot)
    # What a newer writer said in fields that this version does not know cannot be read here, and must not travel.
    copy.DiscardUnknownFields()
    return copy


def _found(
    texts: tuple[str, ...], known: re.Pattern[str] | None, name: str, *, orderly: bool
) -> tuple[secrets.Found, ...]:
    text = "\n".join(texts)
    if not text:
        return ()
    found = secrets.find(text, known, disorder=not orderly)
    if name == "argv":
        found += _of_arguments(texts)
    elif _is_secret(name, text):
        found.append(secrets.Found(begin=0, end=len(text), value=text))
    return tuple(found)


def _is_secret(name: str, text: str) -> bool:
    """Say whether all of a field is one: by the field's name, or the beginning of one in a thread's."""
    if secrets.is_secret_name(name):
        return secrets.is_value(text)
    return name in _NAMES and len(text) == _OF_A_NAME and secrets.is_disordered(text, _OF_A_NAME)


def _of_arguments(words: Sequence[str]) -> Iterator[secrets.Found]:
    """Find what follows a flag for a secret, and values of the environment."""
    at = 0
    secret_next = False
    for word in words:
        match = _ENVIRONMENT.fullmatch(word)
        if secret_next and secrets.is_value(word):
            yield secrets.Found(begin=at, end=at + len(word), value=word)
        elif match and not _SHOWN.fullmatch(match["name"]) and secrets.is_value(match["value"]):
            yield secrets.Found(begin=at + match.start("value"), end=at + len(word), value=match["value"])
        secret_next = word.startswith("-") and secrets.is_secret_name(word)
        at += len(word) + 1


def _replaced(texts: Sequence[str], found: Sequence[secrets.Found], token: Callable[[str], str]) -> list[str]:
    """Put tokens in the place of what was found in the lines `texts`; what overlaps is one secret."""
    merged: list[secrets.Found] = []
    for one in sorted(found, key=lambda each: (each.begin, -each.end)):
        if merged and one.begin < merged[-1].end:
            before = merged[-1]
            merged[-1] = secrets.Found(begin=before.begin, end=max(before.end, one.end), value=before.value)
        else:
            merged.append(one)
    lines: list[str] = []
    begin = 0
    for text in texts:
        end = begin + len(text)
        pieces: list[str] = []
        at = begin
        for secret in merged:
            first, last = max(secret.begin, begin), min(secret.end, end)
            if first < last:
                pieces += (text[at - begin : first - begin], token(secret.value))
                at = last
        pieces.append(text[at - begin :])
        lines.append("".join(pieces))
        begin = end + 1
    return lines
