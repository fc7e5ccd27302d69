from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import stat
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from freezeframe.client import files
from freezeframe.client.cli import cli
from freezeframe.client.cli.report import FORMS
from freezeframe.client.report import bundle, forms, issue
from freezeframe.client.report.anonymise import anonymise
from freezeframe.judge import file
from freezeframe.v1 import snapshot_pb2
from tests.support.command import SEPARATE
from tests.support.story import story

SECRET = "hf_abcdefGHIJKL0123456789"


# As the projects' forms have them, checklists and screenshots left out.
TITLES = {
    "sglang": ("Describe the bug", "Reproduction", "Environment"),
    "vllm": ("Your current environment", "🐛 Describe the bug"),
    "smg": (
        "Bug Description", "Steps to Reproduce", "Expected Behavior", "Actual Behavior", "Component",
        "Routing Policy (if applicable)", "Connection Mode", "Configuration", "Logs / Error Output", "Environment",
        "Deployment Environment", "Streaming Context", "Additional Context",
    ),
    "dynamo": (
        "Describe the Bug", "Steps to Reproduce", "Expected Behavior", "Actual Behavior", "Operating System",
        "ai-dynamo Version", "ai-dynamo-runtime Version", "ai-dynamo-vllm Version", "nixl Version", "Python Version",
        "CUDA Version", "GPU Architecture", "Additional Context",
    ),
}  # fmt: skip


def _saved(tmp_path: Path, snapshot: snapshot_pb2.Snapshot) -> str:
    path = tmp_path / "some.ffz"
    path.write_bytes(file.write([snapshot], "freezeframe-tests 0"))
    return str(path)


def _run(*arguments: str) -> Result:
    return CliRunner(**SEPARATE).invoke(cli, ["report", *arguments])


def _with_secret() -> snapshot_pb2.Snapshot:
    snapshot = story()
    snapshot.processes[2].argv[:] = ["smg", "launch", "--worker-token", SECRET]
    snapshot.verdict.summary += f" Seen: {SECRET}."
    return snapshot


def test_the_forms_of_the_command_are_those_of_the_issue() -> None:
    assert tuple(forms.FORMS) == FORMS


@pytest.mark.parametrize("project", FORMS)
def test_an_issue_has_the_titles_of_its_form_and_the_verdict(project: str, tmp_path: Path) -> None:
    out = tmp_path / "issue.md"
    done = _run(_saved(tmp_path, story()), "--for", project, "-o", str(out))
    assert (done.exit_code, done.stderr) == (0, f"{out}\n")
    text = out.read_text()
    titles = [line[4:] for line in text.split("\n") if line.startswith("### ")]
    assert titles == list(TITLES[project])
    assert text.count("<summary>Logs</summary>") == (project != "smg")
    assert "client 30 ▸ **router 30 (holds them)** ▸ prefill 30 ▸ decode 0" in text
    assert "Debian GNU/Linux 12 (x86_64)" in text
    assert text.count("<details>") == text.count("</details>") > 3
    assert "<details><summary>Python stacks</summary>\n\n" in text
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_an_issue_for_smg_fills_its_choices_from_the_router(tmp_path: Path) -> None:
    snapshot = story()
    router = next(each for each in snapshot.processes if each.pid == 4711)
    router.argv[:] = [
        "smg",
        "launch",
        "--policy=cache_aware",
        "--worker-urls",
        "http://10.0.0.3:1",
        "grpc://10.0.0.4:2",
    ]
    router.container = "3f4c1b2a99d0e1"
    snapshot.requests[1].streaming = True
    text = _run(_saved(tmp_path, snapshot), "--for", "smg").stdout

    def field(title: str) -> str:
        return text.partition(f"### {title}\n\n")[2].partition("\n\n### ")[0]

    assert field("Component") == "model-gateway (core routing)"
    assert (
        field("Routing Policy (if applicable)") == "cache\\_aware"
        or field("Routing Policy (if applicable)") == "cache_aware"
    )
    assert field("Connection Mode") == "Mixed"
    assert field("Configuration").startswith("```\nsmg launch --policy=cache_aware --worker-urls http://10.0.0.3:1")
    assert field("Deployment Environment") == "Docker"
    assert field("Streaming Context") == "Issue occurs with streaming (SSE) responses"
    assert field("Steps to Reproduce").startswith("```\nrouter (pid 4711): smg launch")
    assert field("Actual Behavior").startswith("The router holds 30 requests")
    assert field("Environment").startswith("```\nOS: Linux 6.18.0\ncargo: not known\n")


def test_an_issue_is_redacted_and_says_so(tmp_path: Path) -> None:
    done = _run(_saved(tmp_path, _with_secret()))
    assert done.exit_code == 0
    assert SECRET not in done.stdout
    assert len(set(re.findall(r"SECRET-[0-9a-f]{10}", done.stdout))) == 1
    assert "secrets that became tokens (SECRET-…, equal ones equal): 1." in done.stdout


def test_no_redact_leaves_everything_in(tmp_path: Path) -> None:
    done = _run(_saved(tmp_path, _with_secret()), "--no-redact")
    assert "hf\\_abc" in done.stdout or SECRET in done.stdout
    assert "Not redacted." in done.stdout


def test_the_owners_map_tells_what_a_token_is_and_keeps_it(tmp_path: Path) -> None:
    saved, owned = _saved(tmp_path, _with_secret()), tmp_path / "map.json"
    first = _run(saved, "--redact-map", str(owned))
    content = json.loads(owned.read_text())
    assert SECRET in content["tokens"].values()
    assert stat.S_IMODE(owned.stat().st_mode) == 0o600
    again = _run(saved, "--redact-map", str(owned))
    assert again.stdout == first.stdout
    assert json.loads(owned.read_text()) == content
    assert _run(saved).stdout != first.stdout


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 100_000, '{"key": "xx", "tokens": {}}', '{"key": "00", "tokens": []}']
)
def test_a_file_that_is_no_map_is_refused_and_kept(content: str, tmp_path: Path) -> None:
    owned = tmp_path / "map.json"
    owned.write_text(content)
    done = _run(_saved(tmp_path, story()), "--redact-map", str(owned))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: reading {owned}: it is no map of a redaction\n")
    assert owned.read_text() == content


@pytest.mark.parametrize("arguments", [("--no-redact", "--anonymise"), ("-o", "same.md", "--redact-map", "./same.md")])
def test_what_cannot_be_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert _run(_saved(tmp_path, story()), *arguments).exit_code == 2
    assert os.listdir(tmp_path) == ["some.ffz"]


def test_a_key_that_could_be_tried_out_is_refused(tmp_path: Path) -> None:
    owned = tmp_path / "map.json"
    owned.write_text('{"key": "00", "tokens": {}}')
    done = _run(_saved(tmp_path, story()), "--redact-map", str(owned))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"Error: reading {owned}: its key does not have 32 bytes\nHint: name another file\n"


def test_a_large_snapshot_is_cut_and_says_what_went(tmp_path: Path) -> None:
    snapshot = story()
    for number in range(3000):
        thread = snapshot.python_threads.add(pid=number + 10_000, tid=number + 10_000, name=f"thread-{number}")
        thread.frames.add(function=f"function_{number}", file=f"/srv/a{number}.py", line=number)
    done = _run(_saved(tmp_path, snapshot))
    assert 50_000 < len(done.stdout) < 60_000
    assert re.search(r"\nCut to fit the budget: python stacks \(\d+ of \d+ shown\); left out: .*sockets", done.stdout)
    assert done.stdout.count("<details>") == done.stdout.count("</details>")
    assert "OS: Debian GNU/Linux 12 (x86_64)" in done.stdout


def test_a_verdict_longer_than_an_issue_is_cut_too() -> None:
    snapshot = story()
    snapshot.verdict.summary = "ä long one " * 20_000
    text = issue.render([snapshot], forms.PLAIN, "Not redacted.")
    assert len(text) == issue.MOST_CHARACTERS
    assert text.endswith("Cut here: what must be said is longer than an issue may be.\n")


def test_hostile_titles_fold_nothing_open() -> None:
    snapshot = story()
    snapshot.log_findings.add(pattern="</details><script>", meaning="@all #1\x1b[2J")
    text = issue.render([snapshot], forms.PLAIN, "x")
    assert "<script>" not in text.replace("\\<script", "")
    assert "\x1b" not in text
    assert len(re.findall(r"(?<!\\)</details", text)) == text.count("<details>")


def test_anonymise_makes_stable_tokens_and_keeps_what_tells_of_the_trouble() -> None:
    snapshot = snapshot_pb2.Snapshot()
    snapshot.meta.host = "gpu-07.example.org"
    snapshot.meta.snapshot_id = "gpu-07-20260102T030405678Z-abcd"
    snapshot.processes.add(pid=4711, exe="/home/maria/venv/bin/python3", title="maria: gpu-07 http://10.1.2.3:30000/v1")
    frames = snapshot.python_threads.add(pid=4711).frames
    frames.add(function="f", file="/home/maria/venv/lib/python3.11/site-packages/sglang/srt/scheduler.py")
    frames.add(function="g", file="/usr/lib/python3.11/threading.py")
    snapshot.sockets.add(local="127.0.0.1:30000", remote="10.1.2.3:41000")
    snapshot.requests.add(path="/v1/chat/completions", peer_address="[fe80::1]:8000")
    (clean,) = anonymise([snapshot], b"key").snapshots
    text = str(clean)
    assert not re.search(r"maria|gpu-07|10\.1\.2\.3|fe80|example", text)
    address = clean.sockets[0].remote.partition(":")[0]
    assert re.fullmatch(r"addr-[0-9a-f]{8}", address)
    assert f"http://{address}:30000/v1" in clean.processes[0].title
    assert clean.python_threads[0].frames[0].file.endswith("/site-packages/sglang/srt/scheduler.py")
    assert clean.python_threads[0].frames[1].file == "/usr/lib/python3.11/threading.py"
    assert clean.sockets[0].local == "127.0.0.1:30000"
    assert clean.requests[0].path == "/v1/chat/completions"
    assert clean.processes[0].pid == 4711
    assert anonymise([snapshot], b"key").snapshots == (clean,)


def test_a_damaged_file_is_reported_as_far_as_it_is_whole(tmp_path: Path) -> None:
    whole = Path(_saved(tmp_path, story())).read_bytes()
    cut = tmp_path / "cut.ffz"
    cut.write_bytes(whole[:-200])
    opened = files.load(str(cut))
    assert list(opened.each())
    assert opened.lost
    done = _run(str(cut))
    assert done.exit_code == 5
    assert "what is reported is what is whole of it" in done.stderr


def test_a_bundle_holds_the_redacted_snapshot_and_the_digest_of_each_file(tmp_path: Path) -> None:
    out = tmp_path / "bundle.tgz"
    done = _run(_saved(tmp_path, _with_secret()), "-o", str(out))
    assert (done.exit_code, done.stderr) == (0, f"{out}\n")
    with tarfile.open(out) as archive:
        members = {entry.name: archive.extractfile(entry).read() for entry in archive}
    root = "freezeframe-report"
    assert list(members) == [
        f"{root}/{name}"
        for name in (
            *("manifest.json", "issue.md", "report.html", "snapshot.ffz", "stacks.speedscope.json", "snapshot.json"),
        )
    ]
    manifest = json.loads(members[f"{root}/manifest.json"])
    assert {each["name"]: each["sha256"] for each in manifest["files"]} == {
        name.partition("/")[2]: hashlib.sha256(data).hexdigest()
        for name, data in members.items()
        if not name.endswith("manifest.json")
    }
    assert manifest["left_out"] == []
    assert b"ROUTER_DUAL_LEG" in members[f"{root}/report.html"]
    assert (
        json.loads(members[f"{root}/stacks.speedscope.json"])["profiles"][0]["name"] == "python harness.py (pid 4242)"
    )
    (snapshot,) = files.parse(members[f"{root}/snapshot.ffz"], "it").each()
    assert re.fullmatch(r"SECRET-\w{10}", snapshot.processes[2].argv[3])
    assert json.loads(members[f"{root}/snapshot.json"])["meta"]["host"] == "gpu-07"
    for data in (*members.values(), str(snapshot).encode()):
        assert SECRET.encode() not in data


def test_a_bundle_that_is_too_large_leaves_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    page = random.Random(1).randbytes(4000)
    whole = bundle.pack([story()], b"issue", page, "r", "w")
    assert whole == bundle.pack([story()], b"issue", page, "r", "w")
    order = ["snapshot.json", "stacks.speedscope.json", "report.html", "snapshot.ffz"]
    most = len(whole) + 20_000
    for expected in range(len(order) + 1):
        monkeypatch.setattr(bundle, "MOST_BYTES", most)
        packed = bundle.pack([story()], b"issue", page, "r", "w")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            manifest = json.loads(archive.extractfile("freezeframe-report/manifest.json").read())
        assert [each["name"] for each in manifest["left_out"]] == order[:expected]
        assert [each["name"] for each in manifest["files"] if each["name"] in order] == [
            name
            for name in ("report.html", "snapshot.ffz", "stacks.speedscope.json", "snapshot.json")
            if name not in order[:expected]
        ]
        # A little less than what it took; the manifest says the number too.
        most = len(packed) + 20_000 - 40
