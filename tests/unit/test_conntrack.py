from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.conntrack import Translations, parse, translations

PUBLISHED = (
    b"ipv4     2 tcp      6 431999 ESTABLISHED src=10.0.0.5 dst=10.0.0.1 sport=50000 dport=30000 "
    b"src=172.17.0.2 dst=10.0.0.5 sport=8000 dport=50000 [ASSURED] mark=0 zone=0 use=2\n"
)
COUNTED = (
    b"ipv4     2 tcp      6 300 ESTABLISHED src=10.0.0.5 dst=10.0.0.1 sport=50001 dport=30000 packets=3 bytes=182 "
    b"src=172.17.0.2 dst=172.17.0.1 sport=8000 dport=61000 packets=2 bytes=112 [ASSURED] mark=0 use=1\n"
)
SIXTH = (
    b"ipv6     10 tcp      6 9 SYN_SENT src=fd00:0000:0000:0000:0000:0000:0000:0005 "
    b"dst=fd00:0000:0000:0000:0000:0000:0000:0001 sport=50002 dport=30000 [UNREPLIED] "
    b"src=fd00:0000:0000:0000:0000:0000:0000:0002 dst=fd00:0000:0000:0000:0000:0000:0000:0005 sport=8000 dport=50002 "
    b"mark=0 use=1\n"
)
PLAIN = (
    b"ipv4     2 tcp      6 300 ESTABLISHED src=10.0.0.5 dst=10.0.0.1 sport=50003 dport=22 "
    b"src=10.0.0.1 dst=10.0.0.5 sport=22 dport=50003 [ASSURED] mark=0 use=1\n"
)
OTHER = (
    b"ipv4     2 udp      17 20 src=10.0.0.5 dst=10.0.0.1 sport=1 dport=53 src=1.1.1.1 dst=10.0.0.5 sport=53 dport=1 \n"
)


@pytest.mark.parametrize(
    ("line", "asked", "answered"),
    [
        (PUBLISHED, ("10.0.0.5:50000", "10.0.0.1:30000"), ("172.17.0.2:8000", "10.0.0.5:50000")),
        (COUNTED, ("10.0.0.5:50001", "10.0.0.1:30000"), ("172.17.0.2:8000", "172.17.0.1:61000")),
        (SIXTH, ("[fd00::5]:50002", "[fd00::1]:30000"), ("[fd00::2]:8000", "[fd00::5]:50002")),
    ],
)
def test_a_translated_connection_is_known_from_both_ends(
    line: bytes, asked: tuple[str, str], answered: tuple[str, str]
) -> None:
    assert parse(PLAIN + line + OTHER) == {asked: answered, answered: asked}


@given(st.binary(max_size=500))
def test_nothing_breaks_it(data: bytes) -> None:
    parse(PUBLISHED[:60] + data + PUBLISHED[60:])


def test_a_kernel_without_tracking_translates_nothing(tmp_path: Path) -> None:
    assert translations(str(tmp_path), "self") == Translations(other_end={})


def test_a_kernel_that_tracks_and_does_not_tell_says_so(tmp_path: Path) -> None:
    (tmp_path / "sys/net/netfilter").mkdir(parents=True)
    (tmp_path / "sys/net/netfilter/nf_conntrack_max").touch()
    found = translations(str(tmp_path), "self")
    assert found == Translations(other_end={}, missing="this kernel has no /proc/net/nf_conntrack")


@pytest.mark.parametrize(("entries", "found"), [("00000000", 0), ("0000001f", 2)])
def test_a_table_of_nothing_is_not_read(tmp_path: Path, entries: str, found: int) -> None:
    (tmp_path / "7/net/stat").mkdir(parents=True)
    (tmp_path / "7/net/nf_conntrack").write_bytes(PUBLISHED)
    (tmp_path / "7/net/stat/nf_conntrack").write_text(f"entries  clashres found\n{entries}  00000000 00000000\n")
    assert len(translations(str(tmp_path), 7).other_end) == found
