"""Report errors of commands: map the error tree to exit codes, and print the error.

    0    success
    1    an unexpected error, so a defect; `--debug` shows the traceback. Or a confirmation was refused
    2    the call is wrong: usage, settings, names; change it
    3    something that the call names does not exist
    4    the current state does not allow it, or the object was deleted; look, then decide
    5    the same call may be made again, later
    6    corrupt data, a store that refuses this process, or an installation or a server that is set up wrong; an
         operator must look
    130  interrupted
    141  the reader of the output went away

Errors go to standard error: `refstore: <message>`, or with `--json` an object with `code`, `message` and `retryable`.
"""

from __future__ import annotations

import json as json_
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from refstore.cli.options import explain_stray_word
from refstore.core.disk_space import describe_full_disk, is_full
from refstore.core.redaction import redact_text
from refstore.errors import (
    AuditRefused,
    Conflict,
    ConsentNeeded,
    Contention,
    Corrupt,
    ForeignNotAllowed,
    Gone,
    Invalid,
    KVRefused,
    ManifestBehind,
    MergeConflict,
    MissingExtra,
    NotFound,
    ObjectsRefused,
    PruneStopped,
    RefstoreError,
    StoreMisconfigured,
    Unavailable,
)

UNEXPECTED: Final = 1
USAGE: Final = 2
READER_WENT_AWAY: Final = 141

EXIT_CODES: Final[Mapping[type[RefstoreError], int]] = {
    RefstoreError: UNEXPECTED,
    Invalid: USAGE,
    NotFound: 3,
    Gone: 4,
    Conflict: 4,
    Contention: 5,  # a Conflict, but one where the same call may be made again
    Unavailable: 5,
    KVRefused: 6,  # these are Unavailable, but the same call is refused until an operator has acted
    ObjectsRefused: 6,
    AuditRefused: 6,
    ManifestBehind: 4,  # the change was made: the same call would be another one
    StoreMisconfigured: 6,
    ForeignNotAllowed: 6,
    MissingExtra: 6,
    Corrupt: 6,
}
"""The nearest base class decides."""


def exit_code(kind: type[RefstoreError]) -> int:
    return next(EXIT_CODES[base] for base in kind.__mro__ if base in EXIT_CODES)


def report(error: Exception, *, json: bool, debug: bool) -> int:
    """Print what went wrong and return the exit code."""
    if debug:
        traceback.print_exception(error)
    retryable = isinstance(error, RefstoreError) and error.retryable
    match error:
        case RefstoreError():
            code, status, message = error.code, exit_code(type(error)), str(error)
        case typer.TyperException():
            code, status, message = (
                "usage",
                error.exit_code,
                f"{error.format_message().removesuffix('.')}{_explain_extra(error)}{_where_to_look(error)}",
            )
        case OSError() if is_full(error.errno):  # of a file that refstore's stores do not know, such as the output
            code, status, retryable = Unavailable.code, EXIT_CODES[Unavailable], True
            message = _full(error)
        case typer.Abort():
            code, status, message = "aborted", UNEXPECTED, "the answer was not yes, so nothing was changed"
        case _:
            hint = "" if debug else "; run it again with --debug, and report the traceback"
            code, status, message = "unexpected", UNEXPECTED, f"unexpected {type(error).__name__}: {error}{hint}"
    message = redact_text(message)
    if json:
        body: dict[str, object] = {
            "code": code,
            "message": message,
            "retryable": retryable,
        }
        if isinstance(error, MergeConflict):
            body["paths"] = error.paths
        if isinstance(error, ConsentNeeded):
            body["remove"] = error.names
        if isinstance(error, PruneStopped):
            body["consent"] = error.words
        print(json_.dumps(body), file=sys.stderr)
    else:
        print(f"refstore: {message}", file=sys.stderr)
    return status


def _full(error: OSError) -> str:
    """Say which disk is full, as far as the error names a file; else what may be meant."""
    if not isinstance(error.filename, str):
        import tempfile

        return (
            f"{error.strerror}: the disk of the output, or of temporary files ({tempfile.gettempdir()}), is full; make "
            "room there, or set TMPDIR, then try again"
        )
    folder = Path(error.filename).absolute().parent
    existing = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return f"writing {error.filename} failed: {describe_full_disk(existing, error.errno or 0)}"


def _explain_extra(error: typer.TyperException) -> str:
    """Say what a word that no command has asked for may be: click says only that it is there."""
    context = getattr(error, "ctx", None)
    is_extra = context is not None and error.format_message().startswith("Got unexpected extra argument")
    return explain_stray_word(context) if is_extra else ""


def _where_to_look(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f". See '{context.command_path} --help'." if context is not None else ""
