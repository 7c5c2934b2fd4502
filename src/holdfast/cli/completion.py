"""`holdfast completion`: what a shell reads to complete our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from holdfast.cli.shared import Exit, Failure

SHELLS = ("bash", "zsh", "fish")
# The name is click's rule for a program called holdfast: it is what `main` looks for in its environment.
VARIABLE = "_HOLDFAST_COMPLETE"


@click.command(short_help="Let your shell complete commands and options.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell. It completes commands, options, and options' fixed values.

    Nothing is read from a database, and nothing is written: put the line below into your shell's start file, or store
    what is printed where your shell looks for completions.

    \b
    Example:
      eval "$(holdfast completion bash)"                                         in ~/.bashrc
      eval "$(holdfast completion zsh)"                                          in ~/.zshrc, after compinit
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish        once
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise Failure(f"click knows no completion for {shell}", Exit.UNEXPECTED, "install a later version of click")
    script = kind(ctx.find_root().command, {}, "holdfast", VARIABLE).source()
    # click's script for fish splits at every comma, and so cuts what is said of a command at its first one.
    click.echo(script.replace('string split ","', 'string split --max 1 ","'))
