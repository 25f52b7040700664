"""Find records that the KV has in an older state than the audit log says, and let what keeps more hold.

A KV that was restored from an older copy has access keys that were revoked or rotated since, and rules without the
legal holds that were set since. No entry of the manifest tells that; the audit log does, because it is written before
each such change.

    access keys       one that was revoked is removed; one with a new secret by the log opens nothing until it is given
                      another; what else the log says is applied where it ends something. Nothing is ever enabled
    retention rules   legal holds and pins of the newest rules are added; where the rest may let more expire than those
                      did, nothing expires until an operator has set rules again
    purge document    removed, so that nothing is purged until an operator has onboarded one again
    durations         those that were set last are set again

Each is written to the audit log as a change of what the log had last, so from then on both agree, and doing it again
finds nothing. Operators at the command line need no access key, so their way in stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from refstore.agreed_durations import change_durations, read_record
from refstore.audit.audit_reader import RecordHistory, Subject, as_logged, read_histories
from refstore.context import Context
from refstore.errors import Contention, NotFound
from refstore.kv.base import ABSENT
from refstore.kv_recovery.lake_parts import LakeAccess, RestoredRecord
from refstore.operations import onboard, rules_document
from refstore.records import keys
from refstore.records.encoding import decode_optional, encode
from refstore.records.lake_records import AccessKeyRecord, DurationsRecord
from refstore.service import access_keys

ATTEMPTS: Final = 16
NO_HISTORY: Final = RecordHistory([])


def settle_superseded_records(lake: LakeAccess, *, dry_run: bool = False) -> list[RestoredRecord]:
    """Settle all of them, and return what was done, or would be. Raises AuditUnavailable, Contention, Unavailable."""
    histories = read_histories(lake.kv, lake.own_store)
    done = _settle_keys(lake, histories, dry_run=dry_run)
    done += _settle_durations(lake, histories.get(("durations", "", ""), NO_HISTORY), dry_run=dry_run)
    for name, record in lake.all_repositories():
        if not record.closed_ms:
            made_ms = record.created_ms - int(lake.durations.waits.clock_skew_seconds * 1000)
            own = {  # what is older is of another repository that had the name
                kind: histories.get((kind, name, ""), NO_HISTORY).drop_before(made_ms) for kind in ("rules", "purge")
            }
            done += _settle_repository(lake.context(name, record), own, dry_run=dry_run)
    return done


def settle_superseded_keys(lake: LakeAccess) -> list[RestoredRecord]:
    """Settle access keys alone. Raises AuditUnavailable, Contention, Unavailable."""
    return _settle_keys(lake, read_histories(lake.kv, lake.own_store), dry_run=False)


def end_sessions(lake: LakeAccess, *, dry_run: bool = False) -> list[RestoredRecord]:
    """End the bearer tokens of every access key: which sessions had ended, only the KV knew."""
    ids = [key.id for key in access_keys.scan_keys(lake.kv)]
    for id_ in ids if not dry_run else []:
        with suppress(NotFound):  # revoked meanwhile
            access_keys.end_tokens(lake, id_)
    outcome = f"bearer tokens of {len(ids)} access keys have ended, as sessions that were ended may be open again"
    return [RestoredRecord("", "sessions", "", outcome)] if ids else []


def _settle_repository(ctx: Context, own: Mapping[str, RecordHistory], *, dry_run: bool) -> list[RestoredRecord]:
    outcomes = {
        "retention rules": rules_document.put_back_protection(ctx, own["rules"], dry_run=dry_run),
        "purge document": onboard.withdraw_older(ctx, own["purge"], dry_run=dry_run),
    }
    return [RestoredRecord(ctx.name, kind, ctx.name, outcome) for kind, outcome in outcomes.items() if outcome]


def _settle_keys(
    lake: LakeAccess, histories: Mapping[Subject, RecordHistory], *, dry_run: bool
) -> list[RestoredRecord]:
    own = {target: history for (kind, _, target), history in histories.items() if kind == "key"}
    outcomes = {id_: _settle_key(lake, id_, history, dry_run=dry_run) for id_, history in own.items()}
    return [RestoredRecord("", "access key", id_, outcome) for id_, outcome in outcomes.items() if outcome]


def _settle_key(lake: LakeAccess, id_: str, history: RecordHistory, *, dry_run: bool) -> str:
    key = keys.access_key(id_)
    for _ in range(ATTEMPTS):
        raw = lake.kv.get(key)
        record = decode_optional(raw, AccessKeyRecord)
        if record is None:
            return _record_lost_key(lake, id_, history, dry_run=dry_run)
        changes = history.follow(as_logged(access_keys.audit_values(record)))
        if not changes:
            return ""
        logged, why = changes[-1].act.after, f"older than {changes[-1].describe()}"
        new, action, outcome = None, "key.revoke", f"revoked again: {why}"
        if logged is not None:
            new, action = access_keys.restrict_to_logged(record, logged, lake.clock.now_ms()), "key.restrict"
            outcome = f"its tokens have ended: {why}"
            if access_keys.has_lost_secret(record, logged):
                outcome = f"its new secret is lost, so it opens nothing: {why}; next: refstore keys rotate {id_} --now"
        if dry_run:
            return outcome
        after = access_keys.audit_values(new) if new is not None else None
        with lake.audit.change(
            action, target=id_, before=logged or access_keys.audit_values(record), after=after
        ) as act:
            act.happened = lake.kv.set_if(key, raw, encode(new) if new is not None else ABSENT)
        if act.happened:
            if new is None:
                _record_lost_key(lake, id_, history, dry_run=False)  # one that was made under the same id since
            return outcome
    raise Contention(f"others kept changing access key {id_!r}; run the same again")


def _record_lost_key(lake: LakeAccess, id_: str, history: RecordHistory, *, dry_run: bool) -> str:
    """Write that a key that the KV does not have is lost. Its secret cannot be put back."""
    last = history.find_lost()
    if last is None:
        return ""
    if not dry_run:
        with lake.audit.change("key.lost", target=id_, before=last.act.after):
            pass
    return f"lost since {last.describe()}; next: create another one with `refstore keys create`"


def _settle_durations(lake: LakeAccess, history: RecordHistory, *, dry_run: bool) -> list[RestoredRecord]:
    record, last = read_record(lake.kv), history.last_done
    if record is None or last is None or last.act.after in (None, _as_values(record)):
        return []
    assert last.act.after is not None  # noqa: S101  # a change of the durations has them
    change_durations(lake.kv, lake.clock, lake.ids, lake.audit, last.act.after, dry_run=dry_run)
    shown = ", ".join(f"{name}={value:g}" for name, value in last.act.after.items())
    return [RestoredRecord("", "durations", "durations", f"set again to {shown}: older than {last.describe()}")]


def _as_values(record: DurationsRecord) -> dict[str, float]:
    return msgspec.json.decode(msgspec.json.encode(record.current._asdict()), type=dict[str, float])
