"""`freezeframe mcp`: tools for coding agents, over standard input and output."""

from __future__ import annotations

import click

from freezeframe.client.cli.common import host_argument, trust_option, with_settings
from freezeframe.client.errors import McpExtraMissingError
from freezeframe.client.settings import Settings


@click.command("mcp")
@host_argument
@click.option("--allow-capture", is_flag=True, help="Offer the tool that captures; without it all tools only read.")
@trust_option
@with_settings
def command(settings: Settings, host: str | None, allow_capture: bool, trust_owner: bool) -> None:
    """Serve the Model Context Protocol on stdin and stdout: tools list, show, diff and, where allowed, snap.

    All of them speak to HOST (default: this machine). Needs the extra: pip install 'freezeframe[mcp]'.
    """
    try:
        from freezeframe.client import mcp_server  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        raise McpExtraMissingError(
            f"the MCP server needs packages that are not installed: {error.name}", "pip install 'freezeframe[mcp]'"
        ) from error
    mcp_server.serve(settings, host, allow_capture=allow_capture, trust_owner=trust_owner)
