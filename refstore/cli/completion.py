"""`refstore completion`: print the script by which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from refstore.cli.typer_internals import completion_script

app = typer.Typer()


@app.command("completion")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes refstore's commands and options in a shell.

    \b
    Example: refstore completion bash > ~/.local/share/bash-completion/completions/refstore
             source <(refstore completion zsh)
             refstore completion fish > ~/.config/fish/completions/refstore.fish
    """
    print(completion_script(shell, "_REFSTORE_COMPLETE"))
