"""`freezeframe completion`: the script that makes a shell complete commands, options and sections."""

from __future__ import annotations

import click

from freezeframe.client.settings import emit

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    bash: eval "$(freezeframe completion bash)" in ~/.bashrc; zsh alike in ~/.zshrc;
    fish: freezeframe completion fish > ~/.config/fish/completions/freezeframe.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - for this command alone

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    made = kind(ctx.find_root().command, {}, "freezeframe", "_FREEZEFRAME_COMPLETE")
    # Not `source()`: for bash it runs a bash to ask its version.
    emit((made.source_template % made.source_vars(), "\n"))
