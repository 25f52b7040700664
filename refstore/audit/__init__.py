"""The audit log: who did what, when, from where, before and after. Append-only, in the lake's own object store.

actors.py              the actor: who acts, and from where
audit_entries.py       the entry: its fields, its bytes and its key
chain.py               the chain of entries that a process writes
audit_log.py           the calls that record an act, before it or after it
audit_verification.py  the search for missing or changed entries
audit_reader.py        the entries, newest first
audit_acceptance.py    the entries that the KV lost, which an operator accepts
record_history.py      the states that a record of the KV has had
"""

from __future__ import annotations

from refstore.audit.actors import Actor, act_as, local_actor, set_actor
from refstore.audit.audit_entries import Act, AuditEntry
from refstore.audit.audit_log import AuditLog, EntryDraft

__all__ = ["Act", "Actor", "AuditEntry", "AuditLog", "EntryDraft", "act_as", "local_actor", "set_actor"]
