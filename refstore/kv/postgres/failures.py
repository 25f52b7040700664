"""Turn the errors of PostgreSQL, psycopg and PgBouncer into refstore's."""

from __future__ import annotations

from typing import Final

import psycopg

from refstore.errors import Corrupt, InvalidName, KVRefused, KVUnavailable, RefstoreError, StoreMisconfigured

_READ_ONLY: Final = "it is a standby, or set to be read only; name all servers in the URL, or make this one writable"
_UNAVAILABLE: Final = {
    "25001": _READ_ONLY,
    "25006": _READ_ONLY,
    "40001": "another statement came first; make the same call again",
    "40P01": "two statements waited for each other; make the same call again",
    "53100": "its disk is full; make room on it",
    "53200": "it is out of memory; make the same call again",
    "53300": "it has too many connections; raise its max_connections, or put PgBouncer in front of it",
    "55P03": "another transaction kept a lock; look at pg_locks, then make the same call again",
    "57014": "the statement was cancelled; raise the statement_timeout of this user, or look what kept it",
    "58030": "its disk failed a read or a write; look at its log and check the disk",
}
"""Why, and what to do, by SQLSTATE."""
_REFUSALS: Final = ("authentication", "no password supplied", "pg_hba.conf", "permission denied", 'role "')
"""In the message of a refused login, which has no SQLSTATE."""


def connecting_error(error: psycopg.Error, where: str) -> RefstoreError:
    """Return refstore's error for a failure before anything was sent."""
    text = _one_line(error)
    if any(words in text for words in _REFUSALS):
        return KVRefused(
            f"{where} refused the login ({text}); check the user, the password and pg_hba.conf", nothing_done=True
        )
    if 'database "' in text and "does not exist" in text:
        return StoreMisconfigured(f"{where} cannot be used ({text}); create the database")
    return KVUnavailable(
        f"{where} cannot be reached, or is not the server that takes writes ({text}); check that it runs, then make "
        "the same call again",
        nothing_done=True,
    )


def statement_error(error: psycopg.Error, where: str) -> RefstoreError:
    """Return refstore's error for a failed statement.

    An ERROR of the server itself means that it has undone the statement. A FATAL one may come after the commit, and
    what PgBouncer says has no severity in this field.
    """
    code, text = error.sqlstate or "", _one_line(error)
    nothing_done = error.diag.severity_nonlocalized == "ERROR"
    if code == "42501":
        return KVRefused(
            f"the user of {where} may not do that ({text}); let it create a schema in the database, or make the schema "
            "refstore for it, which it must own",
            nothing_done=nothing_done,
        )
    if code == "54000":
        return InvalidName(f"{where} refused a key ({text}); with its partition it may have about 2,600 bytes")
    if code in ("XX001", "XX002"):
        return Corrupt(f"{where} is damaged ({text}); stop all processes and restore it from a backup")
    if code in _UNAVAILABLE:
        return KVUnavailable(
            f"{where} cannot perform this now ({text}): {_UNAVAILABLE[code]}", nothing_done=nothing_done
        )
    if nothing_done and code[:2] not in ("08", "53", "57", "58"):
        return StoreMisconfigured(
            f"{where} refused a statement ({text}); refstore needs PostgreSQL 15 or later, and its schema refstore as "
            "refstore made it"
        )
    return KVUnavailable(
        f"{where} did not answer ({text}); the statement may have been performed, or may be performed later",
        nothing_done=nothing_done,
    )


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
