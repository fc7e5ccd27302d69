from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e import results
from tests.engines.results import Outcome


def test_each_command_replaces_its_own_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    results.write_part("Real engines", "make engines", "one\n")
    results.write_part("Wedge x router", "make e2e", "two")
    results.write_part("Real engines, a pair", "make engines", "four")
    results.write_part("Real engines", "make engines", "three")
    text = re.sub(r"measured it on .*", "measured it", (tmp_path / "RESULTS.md").read_text())
    assert text == (
        "# Wedge x router, as `make e2e` measured it\n\ntwo\n\n"
        "# Real engines, as `make engines` measured it\n\nthree\n\n"
        "# Real engines, a pair, as `make engines` measured it\n\nfour\n"
    )


@pytest.mark.parametrize(
    ("got", "exact", "wrong"), [("ENGINE_HOLDS", True, False), ("UNDETERMINED", False, False), ("IDLE", False, True)]
)
def test_an_outcome_is_wrong_when_it_says_something_else(got: str, exact: bool, wrong: bool) -> None:
    outcome = Outcome(
        engine="vllm", wedge="w", code="ENGINE_HOLDS", holders=("engine.http",), got=got, got_holders=(), exact=exact,
        confidence="HIGH", took_s=1.0,
    )  # fmt: skip
    assert outcome.wrong is wrong
