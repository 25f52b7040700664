"""The audit log: who did what, when, from where, before and after. Append-only, in the lake's own object store.

audit_entries.py       the actor, and the entry: its fields, its bytes and its key
audit_log.py           the calls that record an act, before it or after it, in the chain of this process
audit_verification.py  missing or changed entries, and those that the KV lost, which an operator accepts
audit_reader.py        the entries, newest first, and the states that a record of the KV has had
"""

from __future__ import annotations

from refstore.audit.audit_entries import Act, Actor, AuditEntry, act_as, local_actor, set_actor
from refstore.audit.audit_log import AuditLog, EntryDraft

__all__ = ["Act", "Actor", "AuditEntry", "AuditLog", "EntryDraft", "act_as", "local_actor", "set_actor"]
