"""The audit log: who did what, when, from where, before and after. Append-only, in the lake's own object store.

actors.py        who acts
entries.py       what an entry is, and where it lies
chain.py         the chain that a process writes, entry by entry
audit_log.py     what those call who act: an entry before the act, or an act that its entry follows
verification.py  whether entries are missing or were changed
audit_reader.py  the entries, newest first
"""

from __future__ import annotations

from refstore.audit.actors import Actor, acting_as, local_actor, set_actor
from refstore.audit.audit_log import AuditLog, EntryDraft
from refstore.audit.entries import Act, Entry

__all__ = ["Act", "Actor", "AuditLog", "Entry", "EntryDraft", "acting_as", "local_actor", "set_actor"]
