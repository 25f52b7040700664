"""How a command fails: one table from the error tree to exit codes, and what is printed.

    0    it was done
    1    something unexpected: a defect; `--debug` shows the traceback. Or a question was not answered with yes
    2    the call is wrong: usage, settings, names; change it
    3    what is named is not there
    4    the state does not allow it, or what is named is gone; look, then decide
    5    the same call may be made again, later
    6    corrupt data, or an installation or a server that is set up wrong; an operator must look
    130  interrupted
    141  whoever read the output went away

Errors go to standard error: `refstore: <message>`, or with `--json` an object with `code`, `message` and `retryable`.
"""

from __future__ import annotations

import json as json_
import sys
import traceback
from collections.abc import Mapping
from typing import Final

import typer

from refstore.errors import (
    Conflict,
    Contention,
    Corrupt,
    ForeignNotAllowed,
    Gone,
    Invalid,
    MergeConflict,
    MissingExtra,
    NotFound,
    RefstoreError,
    StoreMisconfigured,
    Unavailable,
)
from refstore.redaction import redact_text

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
    StoreMisconfigured: 6,
    ForeignNotAllowed: 6,
    MissingExtra: 6,
    Corrupt: 6,
}
"""The nearest class decides."""


def exit_code(kind: type[RefstoreError]) -> int:
    return next(EXIT_CODES[base] for base in kind.__mro__ if base in EXIT_CODES)


def report(error: Exception, *, json: bool, debug: bool) -> int:
    """Print what went wrong and return the exit code."""
    if debug:
        traceback.print_exception(error)
    match error:
        case RefstoreError():
            code, status, message = error.code, exit_code(type(error)), str(error)
        case typer.TyperException():
            code, status, message = "usage", error.exit_code, f"{error.format_message()}{_where_to_look(error)}"
        case typer.Abort():
            code, status, message = "aborted", UNEXPECTED, "stopped at the question; nothing was changed"
        case _:
            hint = "" if debug else "; run it again with --debug to see where, and report it"
            code, status, message = "unexpected", UNEXPECTED, f"unexpected {type(error).__name__}: {error}{hint}"
    message = redact_text(message)
    if json:
        body: dict[str, object] = {"code": code, "message": message, "retryable": isinstance(error, RefstoreError) and error.retryable}
        if isinstance(error, MergeConflict):
            body["paths"] = error.paths
        print(json_.dumps(body), file=sys.stderr)
    else:
        print(f"refstore: {message}", file=sys.stderr)
    return status


def _where_to_look(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f" See '{context.command_path} --help'." if context is not None else ""
