"""The MCP server as coding agents run it: the SDK's own client over stdio, in front of a real agent."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from freezeframe.client.render import budget
from tests.support.command import freezeframe
from tests.support.daemon import Daemon, running_daemon

mcp: Any = importlib.import_module("mcp") if importlib.util.find_spec("mcp") is not None else None
pytestmark = [pytest.mark.needs("root", "mcp"), pytest.mark.timeout(120)]


@asynccontextmanager
async def session(folder: Path, agent: Daemon, *options: str) -> AsyncIterator[Any]:
    parameters = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "freezeframe.client", "mcp", *options, agent.address], cwd=folder
    )
    async with mcp.stdio_client(parameters) as streams, mcp.ClientSession(*streams) as client:
        await client.initialize()
        yield client


async def called(client: Any, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    return bool(result.is_error), "\n".join(each.text for each in result.content)


async def test_a_server_that_may_capture(tmp_path: Path) -> None:
    with running_daemon() as agent:
        async with session(tmp_path, agent, "--allow-capture") as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert sorted(tools) == ["diff", "list", "show", "snap"]
            assert {name for name, tool in tools.items() if tool.annotations.read_only_hint} == {"diff", "list", "show"}
            assert await called(client, "list") == (False, "The agent keeps no snapshot.\n")
            ids = []
            for note in ("first", "second"):
                failed, answer = await called(client, "snap", window_s=0.2, note=note)
                assert not failed, answer
                ids.append(re.search(r"\nSnapshot: (\S+)$", answer)[1])
            failed, listed = await called(client, "list")
            assert not failed
            assert all(each.replace("-", "\\-") in listed or each in listed for each in ids)
            assert listed.index("second") < listed.index("first")

            failed, shown = await called(client, "show", snapshot=ids[0], sections=["verdict", "outcomes"], why=True)
            assert not failed
            assert "### Rules that stand" in shown
            assert "### Outcomes" in shown
            failed, cut = await called(client, "show", budget=150)
            assert "\nCut to fit the budget: " in cut
            assert budget.tokens(cut) <= 150

            for client_of in ("9" * 5000, "4294967296"):
                result = await client.call_tool("snap", {"client": client_of})
                assert result.is_error
                assert "an argument cannot be used: " in result.content[0].text
            failed, once = await called(client, "show", snapshot=ids[0], sections=["outcomes"] * 1000)
            assert once.count("### Outcomes") == 1

            failed, difference = await called(client, "diff", first=ids[0], second=ids[1])
            assert not failed
            assert difference.startswith("**no request of a client in either, ")
            failed, same = await called(client, "diff", first=ids[1])
            assert same.startswith("**both files are the same snapshot, ")

            # The agent's own file, by its path.
            done = freezeframe("get", ids[0], agent.address, "-o", "a.ffz", cwd=tmp_path)
            assert done.returncode in (0, 4), done.stderr
            assert not (await called(client, "show", snapshot=str(tmp_path / "a.ffz")))[0]


async def test_a_server_that_only_reads_and_what_fails(tmp_path: Path) -> None:
    with running_daemon() as agent:
        async with session(tmp_path, agent) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["list", "show", "diff"]
            for tool, arguments, said in (
                ("show", {"snapshot": "nobody-1"}, "nobody-1"),
                ("show", {"sections": ["nonsense"]}, "no section nonsense: there are verdict, "),
                ("show", {"snapshot": "/etc/hostname.ffz"}, "No such file"),
                ("show", {"snapshot": "a\0.ffz"}, "an argument cannot be used: embedded null byte"),
                ("list", {"limit": 0}, "limit must be from 1 to 1000"),
            ):
                failed, answer = await called(client, tool, **arguments)
                assert failed
                assert said in answer
            failed, answer = await called(client, "snap")
            assert failed
            assert answer == "Unknown tool: snap"
            assert await called(client, "list") == (False, "The agent keeps no snapshot.\n")
