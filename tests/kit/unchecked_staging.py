"""Stage what today's checks refuse, as an earlier program may have left it in the KV."""

from __future__ import annotations

from refstore.core import ids
from refstore.core.ids import Address
from refstore.operations.stage_entries import Placement, place
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository


def stage_unchecked(repo: Repository, path: str, url: str, size_bytes: int = 1, branch: str = "main") -> None:
    name = ids.branch_name(branch)
    entry = StoredEntry(Address(url), size_bytes, "", 0, {}, "")
    token = repo.context.branches.read_open(name).record.token
    place(
        repo.context, name, token, [Placement(ids.object_path(path), entry=entry, is_referenced=False)], on_empty=False
    )
