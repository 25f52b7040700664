"""Write the files that lakeFS's own collector asks a server for: the active commits, and the uncommitted addresses.

The collector runs elsewhere and reads the files from the namespace. So they are complete before their keys are
returned. refstore's own offline job does not need them, because it reads the KV in the order of rule 13.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from refstore.context import Context
from refstore.core import keys
from refstore.core.arrow_arrays import array
from refstore.core.ids import Token, staging_token
from refstore.core.records import Entry, decode_staged_many
from refstore.errors import Conflict, Invalid, InvalidName
from refstore.operations import rules_document
from refstore.retention.active_commits import State, compute_expiry

ROOT: Final = "_refstore/gc/prepared"
PART_ENTRIES: Final = 100_000
"""How many entries one answer, and its file, has."""
PAGE: Final = 1000
_SCHEMA: Final = pa.schema([("physical_address", pa.string()), ("creation_date", pa.int64())])


class PreparedCommits(NamedTuple):
    run_id: str
    commits_key: str
    """A CSV file with the columns run_id, commit_id and expired."""
    addresses_prefix: str
    """Where the collector may write its results."""


class PreparedStaging(NamedTuple):
    run_id: str
    prefix: str
    """The prefix of Parquet files with the columns physical_address and creation_date (seconds)."""
    continuation_token: str | None
    """None: this was the last part."""


def commits(ctx: Context) -> PreparedCommits:
    """Write which commits have expired. Raises NotFound (no rules), Conflict (something was purged), CorruptRecord,
    CommitNotFound.
    """
    _check_nothing_was_purged(ctx)
    in_force = rules_document.get(ctx)
    if in_force is None:
        raise rules_document.no_rules(ctx)
    history, names = rules_document.read_history(ctx)
    expiry = compute_expiry(history, names, in_force.rules, ctx.clock.now_ms())
    run_id = ctx.ids.unique(ctx.clock.now_ms())
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("run_id", "commit_id", "expired"))
    expired = set(expiry.commits(State.EXPIRED))
    for commit in history.ids():
        lines.writerow((run_id, commit, "true" if commit in expired else "false"))
    place = f"{ROOT}/commits/{run_id}"
    ctx.objects.put(f"{place}/commits.csv", text.getvalue().encode())
    return PreparedCommits(run_id, f"{place}/commits.csv", f"{ROOT}/addresses/{run_id}/")


def uncommitted(ctx: Context, continuation_token: str | None) -> PreparedStaging:
    """Write a part of the addresses that entries under live and unprocessed tokens name.

    Raises Invalid (the continuation token is not one of ours), Conflict (something was purged).
    """
    _check_nothing_was_purged(ctx)
    run_id, token, path = (
        _parse(continuation_token) if continuation_token else (ctx.ids.unique(ctx.clock.now_ms()), "", "")
    )
    addresses: list[str] = []
    dates: list[int] = []
    rest: tuple[str, str] | None = None
    for under, after, page in _pages(ctx, token, path):
        for entry in decode_staged_many([value for _, value in page]):
            if isinstance(entry, Entry):
                addresses.append(entry.address)
                dates.append(entry.mtime_ms // 1000)
        if len(addresses) >= PART_ENTRIES:
            rest = under, after
            break
    prefix = f"{ROOT}/uncommitted/{run_id}/"
    body = io.BytesIO()
    with pq.ParquetWriter(body, _SCHEMA) as writer:
        columns = [array(addresses, pa.string()), array(dates, pa.int64())]
        writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
    ctx.objects.put(f"{prefix}{ctx.ids.unique(ctx.clock.now_ms())}.parquet", body.getvalue())
    return PreparedStaging(run_id, prefix, _continuation(run_id, *rest) if rest is not None else None)


def _check_nothing_was_purged(ctx: Context) -> None:
    """Raise Conflict where contents may lie elsewhere than commits say (rule 22): lakeFS's collector would take them
    for orphans, and delete them.
    """
    if ctx.locations.are_announced():
        raise Conflict(
            f"repository {ctx.name!r} has purged objects, and lakeFS's collector would delete their contents; run "
            f"`refstore gc run {ctx.name}` instead"
        )


def _pages(ctx: Context, token: str, path: str) -> Iterator[tuple[str, str, list[tuple[str, bytes]]]]:
    """Yield (token, last path of the page, page) from a position on; every token is registered before it is used."""
    if token:
        yield from _entries(ctx, staging_token(token), path)
    for name, _ in ctx.kv.scan_all(keys.tokens(ctx.repo), after=token):
        yield from _entries(ctx, staging_token(name), "")


def _entries(ctx: Context, token: Token, after: str) -> Iterator[tuple[str, str, list[tuple[str, bytes]]]]:
    while page := ctx.kv.scan(keys.staging(ctx.repo, token), after=after, limit=PAGE):
        after = page[-1][0]
        yield token, after, page


def _continuation(run_id: str, token: str, path: str) -> str:
    return base64.urlsafe_b64encode("\0".join((run_id, token, path)).encode()).decode()


def _parse(text: str) -> tuple[str, str, str]:
    try:
        run_id, token, path = base64.urlsafe_b64decode(text).decode().split("\0")
        staging_token(token)
    except (binascii.Error, ValueError, InvalidName):
        raise Invalid("the continuation token is not one of this service; begin without one") from None
    if not (len(run_id) == 26 and run_id.isalnum()):
        raise Invalid("the continuation token is not one of this service; begin without one")
    return run_id, token, path
