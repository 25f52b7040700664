"""`refstore completion`: print the script by which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from refstore.errors import InvalidSettings

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
    try:
        from typer._completion_shared import get_completion_script
    except ImportError as error:
        raise InvalidSettings(
            "this version of Typer makes no such scripts for refstore; install one that does: pip install 'typer<0.30'"
        ) from error

    print(get_completion_script(prog_name="refstore", complete_var="_REFSTORE_COMPLETE", shell=shell))
