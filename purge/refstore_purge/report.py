"""What a run did: one JSON document for each run, in the repository's namespace. It names paths, and never an id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from refstore.errors import Corrupt, NotFound, ObjectNotFound
from refstore.objects.base import ObjectStore
from refstore.repository import Repository
from refstore_purge.plan import NotPurged

RUNS: Final = "_refstore/purge/runs/"
LISTED_MAX: Final = 10_000
"""How many objects that were not purged a report names; it counts all."""

State = Literal["running", "done", "failed", "dry run"]


class Row(msgspec.Struct, kw_only=True):
    """A partition of a data set. Distinct objects are counted, not their names."""

    dataset: str
    partition: str
    objects: int = 0
    by_partition: int = 0
    """Objects whose partition told whether all of their rows are of the ids, or none."""
    by_index: int = 0
    """Objects whose index told that no id is in them."""
    by_statistics: int = 0
    """Objects whose statistics told that no id is in them."""
    by_column: int = 0
    """Objects whose column was read."""
    matched: int = 0
    """Objects with rows of the ids, or with an id in their key-value metadata."""
    rows_found: int = 0
    """Rows of the ids in them."""
    entries_found: int = 0
    """Entries with an id in the key-value metadata of Parquet and ORC."""
    rewritten: int = 0
    erased: int = 0
    """Objects that cannot be rewritten, of which the content goes."""
    summaries: int = 0
    """Summary files of Parquet (`_metadata`) that were written again; in a dry run those that would be."""
    failed: int = 0
    rows_before: int = 0
    """Of the rewritten objects."""
    rows_changed: int = 0
    """Removed, or with columns set to null."""
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    read_bytes: int = 0
    index_bytes: int = 0
    """Of the indexes that were written."""
    attempts: int = 0


class Published(msgspec.Struct, frozen=True):
    """The commit that brought a run's rewritten objects to a branch."""

    branch: str
    commit: str
    paths: int


class Report(msgspec.Struct, kw_only=True):
    run: str
    state: State
    engine: str = ""
    """What found and rewrote: `local` or `spark`."""
    began_ms: int
    ended_ms: int = 0
    ids: int = 0
    """How many there are."""
    of_ledger: bool = False
    """Whether they are those of the ledger."""
    rows: list[Row] = []
    published: list[Published] = []
    not_purged: list[NotPurged] = []
    not_purged_count: int = 0
    watermark: str = ""
    """The partition up to which everything was done, as `prefix` and `partition` in one; '': everything."""
    units_left: int = 0
    seconds: dict[str, float] = {}
    """How long each step took."""
    failure: str = ""
    final_ms: int = 0
    """When the backups of what was replaced are past their days; the next nightly job deletes them. 0: there are none.
    """
    not_final: list[str] = []
    """Why rows of the ids may still be somewhere, beside backups and what was not purged."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left that a later run could purge."""
        return not (self.failure or self.units_left or self.not_purged_count or any(row.failed for row in self.rows))


def write(store: ObjectStore, report: Report) -> None:
    """Write the report; the latest one of a run counts. Raises ObjectsUnavailable."""
    store.put(f"{RUNS}{report.run}.json", msgspec.json.format(msgspec.json.encode(report), indent=1))


def read(repo: Repository, run: str = "") -> Report:
    """Return the report of a run; '': of the latest. Raises NotFound, Corrupt."""
    runs = [info.key for info in repo.context.objects.list(RUNS)]
    key = f"{RUNS}{run}.json" if run else max(runs, default="")
    if key not in runs:
        raise NotFound(
            f"repository {repo.name!r} has no run {run!r} of the purge; `refstore purge status {repo.name}` lists them"
            if run
            else f"no purge was run in repository {repo.name!r}; run: refstore purge run {repo.name} --ids FILE"
        )
    return _read(repo, key)


def scan(repo: Repository) -> Iterator[Report]:
    """Yield the reports of all runs, the newest first. Raises Corrupt."""
    for key in sorted((info.key for info in repo.context.objects.list(RUNS)), reverse=True):
        yield _read(repo, key)


def _read(repo: Repository, key: str) -> Report:
    try:
        return msgspec.json.decode(repo.context.objects.read(key), type=Report)
    except ObjectNotFound:
        raise NotFound(f"the report {key} has just been removed") from None
    except msgspec.DecodeError as error:
        raise Corrupt(f"the report {key} cannot be read ({error}); remove it, or restore it from a backup") from error
