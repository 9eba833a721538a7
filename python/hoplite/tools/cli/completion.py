"""`hoplite completion`: completion scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")

# Variable by which the scripts request completions from the command; also used in `hoplite.tools.cli.main`.
VARIABLE = "_HOPLITE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    It completes commands, options and refs.

    \b
    bash:  hoplite completion bash > ~/.local/share/bash-completion/completions/hoplite
    zsh:   hoplite completion zsh > "${fpath[1]}/_hoplite"
    fish:  hoplite completion fish > ~/.config/fish/completions/hoplite.fish

    The script takes effect in new shells.
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    of_shell = get_completion_class(shell)
    if of_shell is None:
        raise click.UsageError(f"the installed click does not support {shell}: upgrade click")
    command = click.get_current_context().find_root().command
    click.echo(of_shell(command, {}, "hoplite", VARIABLE).source())
