"""A router's log with a known truth, in every form in which a host keeps it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

JOURNAL_REMOTE = next(
    (each for each in ("/lib/systemd/systemd-journal-remote", "/usr/lib/systemd/systemd-journal-remote")
     if os.path.exists(each)), "",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Written:
    """One line as the router wrote it, and when."""

    moment: float
    text: bytes


def router_log(
    now: float, *, answered: int, waiting: int, over_s: float = 600.0
) -> tuple[list[Written], dict[str, float]]:
    """Lines of `answered` requests and of `waiting` ones that nobody answered, and the ages in milliseconds of these.

    Starts are spread over the last `over_s` seconds; what is answered took 40 ms.
    """
    total = answered + waiting
    lines: list[Written] = []
    truth: dict[str, float] = {}
    for number in range(total):
        start = now - over_s * (total - number) / total
        request_id = f"chatcmpl-{number:06d}"
        lines.append(Written(moment=start, text=_line(start, request_id, "started processing request")))
        # Spread evenly, in whole numbers.
        if (number * waiting) // total != ((number + 1) * waiting) // total:
            truth[request_id] = 1000.0 * (now - start)
        else:
            end = _line(start + 0.04, request_id, "finished processing request", " status_code=200 latency=40000")
            lines.append(Written(moment=start + 0.04, text=end))
    lines.sort(key=lambda line: line.moment)
    return lines, truth


def _line(moment: float, request_id: str, message: str, more: str = "") -> bytes:
    stamp = datetime.fromtimestamp(moment, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"\x1b[2m{stamp}\x1b[0m \x1b[32m INFO\x1b[0m http_request{{method=POST uri=/v1/chat/completions "
        f'version=HTTP/1.1 module="sglang_router_rs" request_id="{request_id}"{more}}}: {message}'
    ).encode()


def plain(lines: Sequence[Written]) -> bytes:
    return b"".join(line.text + b"\n" for line in lines)


def docker(lines: Sequence[Written]) -> bytes:
    return b"".join(
        json.dumps({"log": line.text.decode() + "\n", "stream": "stderr", "time": _nanoseconds(line.moment)}).encode()
        + b"\n"
        for line in lines
    )


def cri(lines: Sequence[Written], *, piece: int = 16384) -> bytes:
    """As containerd writes it, long lines in pieces; in this host's zone, as containerd does."""
    written = []
    for line in lines:
        stamp = _nanoseconds(line.moment, zone="+02:00").encode()
        pieces = [line.text[place : place + piece] for place in range(0, len(line.text), piece)]
        written += [stamp + b" stderr P " + part + b"\n" for part in pieces[:-1]]
        written.append(stamp + b" stderr F " + pieces[-1] + b"\n")
    return b"".join(written)


def _nanoseconds(moment: float, *, zone: str = "Z") -> str:
    shift = 7200 if zone == "+02:00" else 0
    whole = datetime.fromtimestamp(int(moment) + shift, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{int(moment % 1 * 1e9):09d}{zone}"


def write_journal(root: Path, lines: Sequence[Written], *, boot: str, name: str = "system", **fields: str) -> None:
    """A journal file below `root` with these lines, made by systemd-journal-remote."""
    folder = root / "var/log/journal" / ("0123456789abcdef" * 2)
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, line in enumerate(lines):
        entries += [
            b"__REALTIME_TIMESTAMP=%d\n__MONOTONIC_TIMESTAMP=%d\n" % (line.moment * 1e6, number + 1),
            b"_BOOT_ID=%s\n" % boot.replace("-", "").encode(),
            *(f"{key}={value}\n".encode() for key, value in fields.items()),
            b"MESSAGE\n" + len(line.text).to_bytes(8, "little") + line.text + b"\n\n",
        ]
    subprocess.run(
        [JOURNAL_REMOTE, "-o", str(folder / f"{name}.journal"), "-"],
        input=b"".join(entries), check=True, capture_output=True, timeout=60,
    )  # fmt: skip
