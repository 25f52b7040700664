"""Onboard a repository's data sets for the purge: check, set and read the document that describes them (seed 002)."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from refstore.audit.audit_reader import RecordHistory
from refstore.context import Context
from refstore.core.clock import to_datetime
from refstore.errors import Contention, CorruptRecord, InvalidPurge, NotFound
from refstore.kv.base import ABSENT, Absent
from refstore.operations import branch
from refstore.purge_document.document import PurgeDocument, read_document
from refstore.records import keys
from refstore.records.encoding import decode_optional, encode
from refstore.records.location_records import PurgeRecord

ATTEMPTS: Final = 16


class OnboardedDocument(NamedTuple):
    """The document that is in force."""

    text: str
    """As it was set."""
    document: PurgeDocument
    set_at: datetime
    """Of a dry run: when it was checked."""
    set_by: str
    warnings: tuple[str, ...]


def onboard(ctx: Context, text: str, *, by: str, dry_run: bool = False) -> OnboardedDocument:
    """Replace the whole document. `dry_run`: check it, and set nothing. Raises InvalidPurge, RepositoryNotFound,
    Contention.
    """
    document, warnings = read_document(text)
    key = keys.purge_document(ctx.repo)
    for _ in range(ATTEMPTS):
        branch.open_record(ctx)
        raw = ctx.kv.get(key)  # not decoded: a document that cannot be read is replaced as well
        now = ctx.clock.now_ms()
        if dry_run:
            return OnboardedDocument(text, document, to_datetime(now), by, warnings)
        record = PurgeRecord(text, now, by, ctx.ids.new_id(now))
        with ctx.audit.change(
            "purge.onboard", repository=ctx.name, before=_audit_values(raw), after=_audit_values(encode(record))
        ) as draft:
            draft.happened = ctx.kv.set_if(key, raw, encode(record))
        if draft.happened:
            return OnboardedDocument(text, document, to_datetime(now), by, warnings)
    raise Contention(f"others kept changing the purge document of {ctx.name!r}; make the same call again")


def withdraw_older(ctx: Context, history: RecordHistory, *, dry_run: bool) -> str:
    """Remove the document of a KV that was restored from an older copy, so that nothing is purged by it. Return what
    was done; '' where the KV has the newest document. Raises AuditUnavailable, Contention, Unavailable.
    """
    key = keys.purge_document(ctx.repo)
    for _ in range(ATTEMPTS):
        raw = ctx.kv.get(key)
        values = _audit_values(raw)
        last = history.find_newer(values)
        if last is None:
            return ""
        did = "withdrawn" if values is not None else "lost"
        outcome = f"{did}, it is older than {last.describe()}; onboard the document again that you want"
        if dry_run:
            return outcome
        with ctx.audit.change("purge.onboard", repository=ctx.name, before=last.act.after) as draft:
            draft.happened = raw is ABSENT or ctx.kv.set_if(key, raw, ABSENT)
        if draft.happened:
            return outcome
    raise Contention(f"others kept changing the purge document of {ctx.name!r}; make the same call again")


def get_document(ctx: Context) -> OnboardedDocument:
    """Return the document in force. Raises NotFound (nothing is onboarded), CorruptRecord; then nothing is purged."""
    record = decode_optional(ctx.kv.get(keys.purge_document(ctx.repo)), PurgeRecord)
    if record is None:
        raise NotFound(
            f"nothing is onboarded for the purge in {ctx.name!r}; describe its data sets in a document (docs/purge.md) "
            f"and set it with repo.onboard_purge, or: refstore purge onboard {ctx.name} FILE"
        )
    try:
        document, warnings = read_document(record.document)
    except InvalidPurge as error:
        raise CorruptRecord(
            f"the purge document of {ctx.name!r} cannot be read ({error}); onboard it again before anything is purged"
        ) from error
    return OnboardedDocument(record.document, document, to_datetime(record.set_ms), record.set_by, warnings)


def _audit_values(raw: bytes | Absent) -> dict[str, object] | None:
    """Return the document as the audit log shows it."""
    try:
        record = decode_optional(raw, PurgeRecord)
    except CorruptRecord:
        return {"unreadable": True}
    if record is None:
        return None
    return {"document": record.document, "set_by": record.set_by, "write_id": record.write_id}
