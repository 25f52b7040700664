"""Publish in every version, while commits and their ids stay (modes `rewrite` and `erase`, rule 22).

write      intend, and write the contents again in tasks (`content_replacement.py`)
publish    let the location record of each object name its new content
again      plan every version again: what came meanwhile, and what others replaced or deleted
summaries  behind all attempts, write the summary files of Parquet again (`summary_files.py`)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Final, cast

import msgspec

from refstore.core.batches import split_batches
from refstore.core.ids import Address
from refstore.errors import DeadlineExceeded, ObjectNotFound
from refstore.purge_document.document import ERASE
from refstore.records.location_records import Content
from refstore_purge import purge_tasks, summary_files
from refstore_purge.content_replacement import ReplacementAttempt, replace_contents
from refstore_purge.object_holders import is_never_landed
from refstore_purge.outcomes import SUMMARY, ObjectResult
from refstore_purge.purge_attempts import Publisher, PurgeAttempt
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_plan import BranchPath, PurgeObject, PurgePlan, find_outside_names, plan_versions

REWRITES_PER_CORE: Final = 32
"""How many objects each core writes in one call of the engine."""
PART_BYTES: Final = 4 << 30
"""How many bytes, so that it ends well within the deadline of an operation."""
ERASE_BATCH: Final = 1000
BUSY: Final = (
    "others kept changing it, or its content is not there; run the purge again, and if that does not help, ask "
    "`refstore why` about its path"
)
DISAGREED: Final = "the search found rows or metadata with ids, and the rewrite found none; report this"

WriteObjects = Callable[[Sequence[PurgeObject], Sequence[str]], list[ObjectResult]]
"""Writes the new contents of objects to addresses."""


class LocationPublisher(Publisher):
    def find_outside_names(self, plan: PurgePlan, addresses: Mapping[str, PurgeObject]) -> dict[str, list[BranchPath]]:
        del plan
        return find_outside_names(self.run.repo.context, self.prefixes, addresses)

    def is_missed(self, purge_object: PurgeObject) -> bool:
        """Return False for what only a commit that has not landed names: nobody can read it, and it keeps nothing."""
        return not is_never_landed(self.run.repo.context, purge_object.names[0].branch)

    def publish(self, attempt: PurgeAttempt) -> None:
        run, unsettled = self.run, list(attempt.missing)
        run.repo.context.locations.announce()
        with run.steps.step("rewriting"):
            of_rows = [each for each in attempt.objects if each.dataset.mode != ERASE]
            for batch in run.batch_objects(of_rows, REWRITES_PER_CORE, PART_BYTES):
                unsettled += self._replace(batch, self._rewrite_objects, has_index=True)
        with run.steps.step("erasing"):
            for batch in split_batches([each for each in attempt.objects if each.dataset.mode == ERASE], ERASE_BATCH):
                unsettled += self._replace(batch, _erase_objects)
        if attempt.is_last:
            self._leave(unsettled)

    def plan_again(self) -> PurgePlan:
        with self.run.steps.step("listing every version"):
            plan = plan_versions(self.run.repo, self.datasets, self.run.ids.planned_sets)
        self.run.account.note_plan(plan)
        return plan

    def purge_summaries(self, plan: PurgePlan) -> None:
        """Write the summary files again that have an id, or describe files that were replaced."""
        run, originals = self.run, {each.address for each in plan.objects}

        def is_replaced(address: str) -> bool:
            return address not in originals

        def write(objects: Sequence[PurgeObject], addresses: Sequence[str]) -> list[ObjectResult]:
            return [
                self._rewrite_summary(purge_object, address, is_replaced)
                for purge_object, address in zip(objects, addresses, strict=True)
            ]

        with run.steps.step("looking at summary files"):
            stale = summary_files.find_stale_summaries(run, plan.summaries, is_replaced)
            chosen = self.exclude_copies(plan, stale)
        if run.options.dry_run:
            for each in chosen:
                run.record("replaced", each, ObjectResult(address=each.content_address, decided_by=SUMMARY))
            return
        with run.steps.step("writing summary files"):
            for batch in split_batches(chosen, REWRITES_PER_CORE):
                run.repo.context.locations.announce()
                self._leave(self._replace(batch, write))

    def _leave(self, objects: Sequence[PurgeObject]) -> None:
        for each in objects:
            self.run.record("left", each, reason=BUSY)

    def _replace(
        self, objects: Sequence[PurgeObject], write_objects: WriteObjects, *, has_index: bool = False
    ) -> list[PurgeObject]:
        """Replace the contents of some objects; return those that others changed or deleted meanwhile: neither
        replaced, nor left. What does not end within the deadline of an operation is done again in halves.
        """
        run = self.run
        written: dict[int, tuple[PurgeObject, ObjectResult]] = {}
        published: dict[int, PurgeObject] = {}

        def write(attempts: Sequence[ReplacementAttempt]) -> list[Content | None]:
            # with the contents that the intents were written for: another run may have replaced what the plan saw
            current = [
                msgspec.structs.replace(
                    objects[each.number], size_bytes=each.current.size_bytes, content_address=each.current.address
                )
                for each in attempts
            ]
            results = write_objects(current, [each.target_address for each in attempts])
            written.update(zip((each.number for each in attempts), zip(current, results, strict=True), strict=True))
            contents = [self._make_content(*written[each.number]) for each in attempts]
            run.announce(
                written[each.number] for each, content in zip(attempts, contents, strict=True) if content is not None
            )
            return contents

        def note(attempt: ReplacementAttempt) -> None:
            purge_object, result = written[attempt.number]
            published[attempt.number] = purge_object
            run.record("replaced", purge_object, result)

        originals: list[tuple[Address, Content]] = []
        for each in objects:
            assert each.original_content is not None  # noqa: S101  # `plan_versions` has set it
            originals.append((Address(each.address), each.original_content))
        busy: list[int] = []
        late: list[PurgeObject] = []
        try:
            busy = replace_contents(run.repo.context, run.account.report.run, originals, write, note)
        except DeadlineExceeded as error:
            late = [each for number, each in enumerate(objects) if number not in published]
            if len(objects) == 1:
                run.record("left", objects[0], reason=str(error))
                late = []
        run.end_publishing()
        if has_index:
            run.delete_indexes(published.values())
        gone = [number for number, (_, result) in written.items() if result.is_gone]
        unsettled = [] if late else [objects[number] for number in (*busy, *gone)]
        for half in split_batches(late, -(-len(objects) // 2)):
            unsettled += self._replace(half, write_objects, has_index=has_index)
        return unsettled

    def _make_content(self, purge_object: PurgeObject, result: ObjectResult) -> Content | None:
        """Count what a task has written, and return it as a content; None if the object stays as it is."""
        run = self.run
        run.record("written", purge_object, result)
        if result.failure or result.is_gone:
            return None
        if not result.has_ids:
            searched = run.account.results.get((purge_object.dataset.name, purge_object.content_address))
            if searched is not None and searched.has_ids:
                run.record("left", purge_object, reason=DISAGREED)
            return None
        return Content(
            Address(result.target_address),
            result.size_bytes,
            result.checksum,
            result.md5,
            run=run.account.report.run,
            written_ms=run.repo.context.clock.now_ms(),
        )

    def _rewrite_objects(self, objects: Sequence[PurgeObject], addresses: Sequence[str]) -> list[ObjectResult]:
        tasks = [self.run.make_task(each, to=to) for each, to in zip(objects, addresses, strict=True)]
        return self.run.run_tasks(tasks)

    def _rewrite_summary(
        self, purge_object: PurgeObject, to: str, is_replaced: summary_files.IsReplaced
    ) -> ObjectResult:
        """Write a summary file again, here in the driver."""
        run, unchanged = self.run, ObjectResult(address=purge_object.content_address)
        with tempfile.TemporaryFile(prefix="refstore-purge-") as target:
            try:
                summary_files.rewrite_summary(
                    run, purge_object, purge_object.names, is_replaced, cast(BinaryIO, target)
                )
                stored = purge_tasks.put_result(run.repo.context.objects, to, target)
            except PurgeError as error:
                return msgspec.structs.replace(unchanged, failure=str(error))
            except ObjectNotFound:
                return msgspec.structs.replace(unchanged, is_gone=True)
        return ObjectResult(
            address=purge_object.content_address,
            matched_entries=1,
            decided_by=SUMMARY,
            target_address=to,
            size_bytes=stored.size_bytes,
            checksum=stored.checksum,
            md5=stored.md5,
        )


def _erase_objects(objects: Sequence[PurgeObject], _: Sequence[str]) -> list[ObjectResult]:
    return [ObjectResult(address=each.content_address, matched_rows=1) for each in objects]
