from __future__ import annotations

from pathlib import Path

from freezeframe.judge import verdicts
from freezeframe.judge.model import Verdict


def test_every_rule_file_is_in_the_tuple_and_names_its_code():
    folder = Path(verdicts.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    listed = [rule.__module__.rpartition(".")[2] for rules in (*verdicts.RULES, verdicts.OTHERWISE) for rule in rules]
    assert sorted(listed) == sorted(files)
    for name in files:
        text = (folder / f"{name}.py").read_text(encoding="utf-8")
        assert text.startswith(f'"""{name.upper()}: '), name
        assert name.upper() in Verdict.Code.__members__
