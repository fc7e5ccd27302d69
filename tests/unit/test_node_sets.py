"""Names of many hosts at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from freezeframe.client.errors import HostError
from freezeframe.client.node_sets import MOST_HOSTS, expand

GROUPS = {"prod": ("gpu-[01-02]", "router-1"), "broken": ("gpu-[2-1]",), "empty": ()}


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        (("gpu-[01-03]", "router-1"), ("gpu-01", "gpu-02", "gpu-03", "router-1")),
        (("gpu-[1-3,7]",), ("gpu-1", "gpu-2", "gpu-3", "gpu-7")),
        (("gpu-[1-4]!gpu-3",), ("gpu-1", "gpu-2", "gpu-4")),
        (("router-1", "gpu-[1-2]", "gpu-2"), ("router-1", "gpu-1", "gpu-2")),
        (("root@gpu-[1-2].example.net",), ("root@gpu-1.example.net", "root@gpu-2.example.net")),
        (("ssh://root@gpu-[1-2]:22/run/x",), ("ssh://root@gpu-1:22/run/x", "ssh://root@gpu-2:22/run/x")),
        (
            ("tls://[::1]:7443", "unix:/a,b", "ssh://[fe80::1%eth0]"),
            ("tls://[::1]:7443", "unix:/a,b", "ssh://[fe80::1%eth0]"),
        ),
    ],
)
def test_sets(given: tuple[str, ...], hosts: tuple[str, ...]) -> None:
    assert expand(given, (), {}) == hosts


def test_groups_come_after_what_is_named() -> None:
    assert expand(("a", "gpu-02"), ("prod",), GROUPS) == ("a", "gpu-02", "gpu-01", "router-1")


@pytest.mark.parametrize(
    ("given", "groups", "said"),
    [
        (("gpu-[2-1]",), (), "gpu-[2-1] is no set of hosts: "),
        ((), ("broken",), "gpu-[2-1] is no set of hosts: "),
        (("gpu-[01-",), (), "gpu-[01- is no set of hosts"),
        (("gpu-[a-b]",), (), "gpu-[a-b] is no set of hosts"),
        (("me@gpu-1-3]",), (), "me@gpu-1-3] is no set of hosts"),
        ((), ("empty",), "the group empty has no host"),
        ((), ("test",), "there is no group test (known: broken, empty, prod)"),
        ((f"gpu-[1-{MOST_HOSTS + 1}]",), (), "gpu-[1-1001] is 1,001 hosts, too many: one capture takes 1,000 hosts"),
        (("a-[1-600]", "b-[1-600]"), (), "1,200 hosts are too many: one capture takes 1,000 hosts"),
        (("gpu-[1-2]!gpu-[1-2]",), (), "gpu-[1-2]!gpu-[1-2] is no host at all"),
    ],
)
def test_what_is_none(given: tuple[str, ...], groups: tuple[str, ...], said: str) -> None:
    with pytest.raises(HostError) as caught:
        expand(given, groups, GROUPS)
    assert str(caught.value).startswith(said)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["gpu-[1-99999]", "gpu-[1-4000000000]"])
def test_a_huge_set_costs_nothing(name: str) -> None:
    with pytest.raises(HostError, match="too many"):
        expand((name,), (), {})


def test_clustershell_is_imported_for_a_set_alone() -> None:
    code = (
        "import sys, freezeframe.client.node_sets as n; n.expand(['a'], (), {}); print('ClusterShell' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
