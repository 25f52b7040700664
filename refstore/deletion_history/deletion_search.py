"""Search all records of deletions for addresses and paths.

The index has nearly all of them. What it has no file for yet is searched where it was written first: the files of a
run, and the segments of the journal. `incomplete` lists what could not be searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.clock import to_datetime
from refstore.core.ids import Address, BranchName, Path
from refstore.deletion_history import deletion_index, deletion_journal
from refstore.deletion_history.causes import SWEEP, rule_of_run
from refstore.deletion_history.deletion_journal import DeletionRecord, path_key
from refstore.gc_marks import OPEN_STATES, Marks, OfflineRun, RunState, sweep_records
from refstore.gc_marks.sweep_records import RunFilesMissing
from refstore.operations.address_info import UNREFERENCED_STATES, AddressInfo
from refstore.operations.committed_names import is_named_by
from refstore.operations.delete_contents import CONTENT_OF_DELETED

UNINDEXED_MAX: Final = 50
"""How many swept runs that are not in the index are searched one by one, the newest first."""
PATH_SEGMENTS_MAX: Final = 2_000
"""How many segments of the journal that are not in the index yet are searched for a path, the newest first."""
_OLDER_RUNS: Final = "older runs that are not in the index (`refstore gc run --only index` adds them)"


class MarkedFor(NamedTuple):
    """An address in a mark that is not swept yet."""

    mark_id: str
    state: str
    deletes_at: datetime
    cause: str
    rule: str
    question: str
    """What an operator has to confirm first; '' if nothing."""


class AddressHistory(NamedTuple):
    """The deletions and marks of an address."""

    deletions: tuple[DeletionRecord, ...]
    """Oldest first."""
    marked: tuple[MarkedFor, ...]
    incomplete: tuple[str, ...]


class DeletionSearch:
    """Searches for one answer. Lists the index once: what has no file by then is searched elsewhere, even if another
    process indexes it meanwhile.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._index = deletion_index.read_index(ctx.objects)

    def of_addresses(self, views: Sequence[AddressInfo]) -> list[AddressHistory]:
        """Return the history of each address. Raises Corrupt, Unavailable."""
        indexed = deletion_index.lookup(self._ctx.objects, self._index.files, [view.address for view in views])
        runs = sorted(Marks(self._ctx).runs.scan(), key=lambda run: run.record.began_ms, reverse=True)
        return [self._history(view, indexed, runs) for view in views]

    def of_path(self, branch: BranchName, path: Path, incomplete: dict[str, None]) -> list[DeletionRecord]:
        """Return the journal's deletions for the path on the branch, the newest first."""
        of_journal = [info for info in self._index.files if deletion_index.is_of_journal(info.key)]
        key = path_key(branch, path)
        indexed = deletion_index.lookup(self._ctx.objects, of_journal, [key])
        incomplete |= dict.fromkeys(note.text for note in indexed.unreadable)
        found = [*indexed.records[key], *self._in_journal(key, 0, incomplete, PATH_SEGMENTS_MAX)]
        at_path = [record for record in dict.fromkeys(found) if not record.cause.startswith(CONTENT_OF_DELETED)]
        return sorted(at_path, key=lambda record: -record.at_ms)

    def _history(self, view: AddressInfo, indexed: deletion_index.Lookup, runs: Sequence[OfflineRun]) -> AddressHistory:
        address = view.address
        made_ms = _made_ms(self._ctx, address)
        incomplete = dict.fromkeys(note.text for note in indexed.unreadable if note.at_ms >= made_ms)
        deletions = [*indexed.records[address], *self._in_journal(address, made_ms, incomplete)]
        marked: list[MarkedFor] = []
        # An index file of a run that lacks another one may tell a slightly different time than the run's record.
        known = {deletion._replace(at_ms=0) for deletion in deletions}
        for found in self._in_runs(view, made_ms, runs, incomplete):
            if isinstance(found, MarkedFor):
                marked.append(found)
            elif found._replace(at_ms=0) not in known:
                deletions.append(found)
        ordered = sorted(dict.fromkeys(deletions), key=lambda deletion: deletion.at_ms)
        return AddressHistory(tuple(ordered), tuple(marked), tuple(incomplete))

    def _in_journal(
        self, key: str, made_ms: int, incomplete: dict[str, None], segments_max: int | None = None
    ) -> Iterator[DeletionRecord]:
        """Yield the deletions in segments that the index does not have. An address was not deleted before it was
        generated.
        """
        for gap in self._index.journal_gaps:
            if gap.to_ms > made_ms:
                yield from deletion_journal.find(
                    self._ctx.objects,
                    key,
                    after=deletion_journal.first_after(max(gap.from_ms, made_ms)),
                    before=deletion_journal.first_after(gap.to_ms),
                    segments_max=segments_max,
                    unreadable=lambda text: incomplete.update({text: None}),
                )

    def _in_runs(
        self, view: AddressInfo, made_ms: int, runs: Sequence[OfflineRun], incomplete: dict[str, None]
    ) -> Iterator[DeletionRecord | MarkedFor]:
        """Yield the deletions and marks in runs that the index does not have: most of these are not swept yet."""
        left = UNINDEXED_MAX
        for run in runs:
            if run.record.finished_ms and run.record.finished_ms < made_ms:
                continue  # the address was generated after the run
            if run.mark_id in self._index.runs or run.state not in (*OPEN_STATES, RunState.SWEPT):
                continue
            if run.state in (RunState.MARKED, RunState.NEEDS_CONFIRMATION) and view.state not in UNREFERENCED_STATES:
                continue  # a mark that is not being swept contains only existing objects without references
            if not left:
                incomplete[_OLDER_RUNS] = None
                return
            left -= 1
            try:
                found = _in_run(self._ctx, run, view.address)
            except RunFilesMissing:
                incomplete[f"mark {run.mark_id}, whose files were removed before they were indexed"] = None
                continue
            if found is not None:
                yield found


def _in_run(ctx: Context, run: OfflineRun, address: Address) -> DeletionRecord | MarkedFor | None:
    """Return the deletion or the mark of the address in one run. Raises RunFilesMissing."""
    unit = sweep_records.find_unit(ctx.objects, run.mark_id, address)
    if unit is None:
        return None
    record = run.record
    if run.state in (RunState.SWEEPING, RunState.SWEPT):
        try:
            row = sweep_records.read_outcome_row(ctx.objects, sweep_records.outcome_key(unit), address)
        except RunFilesMissing:
            if run.state is RunState.SWEPT:
                raise
        else:
            if row is None or row.outcome == "excluded":
                return None
            rule = rule_of_run(sweep_records.read_run_rules(ctx.objects, run.mark_id), row.reason)
            at_ms = record.swept_ms or record.sweep_began_ms
            return DeletionRecord(
                address, at_ms, SWEEP, run.mark_id, row.outcome, row.reason, rule, "", "", row.size_bytes, row.why
            )
    marked = sweep_records.read_marked_row(ctx.objects, unit, address)
    if marked is None or is_named_by(ctx, address, Marks(ctx).sweeps.taken_back(run)):
        return None  # the sweep leaves it
    rule = rule_of_run(sweep_records.read_run_rules(ctx.objects, run.mark_id), marked.reason)
    return MarkedFor(
        run.mark_id, run.state.value, to_datetime(record.deletes_at_ms), marked.reason, rule, record.question
    )


def _made_ms(ctx: Context, address: Address) -> int:
    try:
        hour = datetime.strptime(address.split("/")[1], "%Y%m%d%H").replace(tzinfo=UTC)
    except ValueError:
        return 0  # an hour that no calendar has
    return max(0, int((hour.timestamp() - ctx.waits.clock_skew_seconds) * 1000))
