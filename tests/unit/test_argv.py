from __future__ import annotations

import pytest

from freezeframe.agentd.collectors.read_command_lines import command_line
from freezeframe.agentd.host.argv import allowed

SECRET = "sk-live-0123456789abcdef"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            "/venv/bin/python -u -m sglang.launch_server --model-path /models/x --port 30000 --api-key " + SECRET,
            "/venv/bin/python -u -m sglang.launch_server --model-path … --port 30000 --api-key …",
        ),
        ("vllm serve secret-model --tensor-parallel-size 8", "vllm serve secret-model --tensor-parallel-size 8"),
        ("sglang serve --disaggregation-mode=prefill --api-key=" + SECRET,
         "sglang serve --disaggregation-mode=prefill --api-key=…"),
        ("smg launch --worker-urls http://u:p@h:1/x?k=v http://b:2", "smg launch --worker-urls http://h:1 http://b:2"),
        ("python -c print('" + SECRET + "')", "python -c …"),
        ("curl -H Authorization:" + SECRET + " http://x/?key=" + SECRET, "curl -H … …"),
        ("python app.py --port " + SECRET + "=x", "python app.py --port …"),
        ("prog -" + SECRET + "'%", "prog …"),
    ],
)  # fmt: skip
def test_allowed(given: str, kept: str) -> None:
    assert " ".join(allowed(given.split(" "))) == kept


def test_an_empty_command_line() -> None:
    assert allowed([]) == ()


def test_a_title_is_no_command_line() -> None:
    process = command_line(7, b"sglang::scheduler_TP0" + b"\0" * 40, 4096)
    assert (process.title, process.argv, process.argv_source) == ("sglang::scheduler_TP0", (), "")


def test_a_command_line_is_shown_with_its_hidden_parts() -> None:
    process = command_line(7, b"python\0-m\0sglang.launch_server\0--api-key\0x\0", 4096)
    assert process.title == "python -m sglang.launch_server --api-key …"
    assert process.argv_source == "own"


def test_no_command_line_at_all() -> None:
    assert command_line(7, b"", 4096).title == ""
