"""All that the command takes from inside Typer, which has no public name for it: how a shell completes a line.

Typer may keep it elsewhere in any version, so nothing else rests on it: without it the command only does not complete.
"""

from __future__ import annotations

from contextlib import suppress

from refstore.errors import InvalidSettings


def prepare_completion() -> None:
    """Let Typer answer a shell that asks how a line may go on; with a Typer that keeps that elsewhere, do nothing."""
    with suppress(ImportError):
        from typer._completion_classes import completion_init

        completion_init()


def completion_script(shell: str, variable: str) -> str:
    """Return the script by which a shell completes. Raises InvalidSettings."""
    try:
        from typer._completion_shared import get_completion_script
    except ImportError as error:
        raise InvalidSettings(
            "this version of Typer makes no such scripts for refstore; install one that does: pip install 'typer<0.30'"
        ) from error
    return get_completion_script(prog_name="refstore", complete_var=variable, shell=shell)
