"""Change what an entry says of its object: the same address, in the place of exactly the entry that was read (rule 20).

`copy.py` refuses a copy onto itself: it would replace whatever is there, also what somebody wrote after the source was
read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import BranchName, Path, is_own
from refstore.errors import Contention, Gone, ObjectNotFound, OutcomeUnknown
from refstore.kv.base import ABSENT
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.operations import refs
from refstore.operations.copy import find_committed_sources, make_copy
from refstore.operations.read import is_same_view, resolve_many
from refstore.operations.refs import ResolvedRef
from refstore.operations.stage_entries import OVERWRITTEN_CAUSE, REFUSED_CAUSE, releases_of_replaced
from refstore.public_types import Entry
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import Reference
from refstore.records.staging_records import StoredEntry
from refstore.versioning.address_state import AddOutcome
from refstore.versioning.references import Release

ATTEMPTS: Final = 16
"""How often the change starts over, because the branch or the path changed."""


def change_metadata(ctx: Context, branch: BranchName, path: Path, change: Callable[[Entry], Entry]) -> StoredEntry:
    """Change the metadata and the content type of the object at a path, and return its entry.

    Each attempt reads the path, and writes under the token that is current then. It follows the branch nowhere: what is
    there then is read again. `change` is called with the entry of each attempt. What it raises ends the call.

    Raises ObjectNotFound, Gone; Contention, also where a commit under way may bring another object to the path.
    """
    branches = ctx.branches
    references = ctx.references
    ref = ResolvedRef.of_branch(branch)
    unknown = UnknownOutcomes(ctx.clock)
    for _ in range(ATTEMPTS):
        before = branches.read_open(branch).record
        current = resolve_many(ctx, ref, [path]).get(path)
        if not is_same_view(before, branches.read_open(branch).record):
            continue
        if current is None:
            raise ObjectNotFound(f"{path!r} is not on {branch!r}")
        token = before.token
        if current.token != token and before.sealed_tokens:
            raise Contention(f"{path!r} is in a commit of {branch!r} that is under way; make the same call again later")
        if current.commit is not None:
            refs.check_mark(ctx, current.commit, [path])
        entry = make_copy(ctx, path, current.entry, ctx.clock.now_ms(), change)
        own = Reference(token, path, entry.reference_id)
        is_referenced = current.token is not None and is_own(entry.address)
        if is_referenced:
            (outcome,) = references.add([(entry.address, own)], on_empty=False)
            if outcome is AddOutcome.NO_RECORD and find_committed_sources(ctx, ref, {path: current}, [path]):
                is_referenced = False
            elif outcome is not AddOutcome.LISTED:
                continue  # the source has changed
        key = keys.entry(ctx.repo, token, path)
        replaced = encode(current.entry) if current.token == token else ABSENT
        try:
            is_placed = ctx.kv.set_if(key, replaced, encode(entry), once=True)
        except OutcomeUnknown as error:
            unknown.wait(error)
            continue  # it may land later: its reference stays until its token is processed
        if is_placed and current.commit is not None:
            try:
                refs.check_mark(ctx, current.commit, [path])
            except Gone:
                with deadline.lift():  # an operation that comes this late may have outlived the wait of the marking run
                    ctx.kv.set_if(key, encode(entry), replaced)
                raise
        if is_placed and branches.read_open(branch).record.token == token:
            references.release(releases_of_replaced(token, [(path, replaced)], OVERWRITTEN_CAUSE), guess=True)
            return entry
        if not is_placed and is_referenced:
            references.release([Release(entry.address, own, REFUSED_CAUSE, None)])  # it was never placed with that one
    raise branches.contention(branch)
