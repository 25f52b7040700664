"""Imports in the background: every process shows their status, and continues an import whose process died.

The state of an import is in the KV, under its id (`ImportRecord`). The process that runs it writes a heartbeat every
second. A status request for an import without a heartbeat continues it: the process lists the sources **again**, under
the same id, and commits once. The commit's id is recorded before the branch is moved to it, so that the next process
knows whether it landed.

    running    -> completed | failed | canceled
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from refstore.context import Context
from refstore.core import event_log
from refstore.core.ids import BranchName, CommitId
from refstore.core.lazy_modules import LazyModule
from refstore.core.redaction import redact_text
from refstore.core.units import DAY_MS
from refstore.errors import CommitNotFound, Conflict, NotFound, RefstoreError, Unavailable
from refstore.kv.base import ABSENT
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, encode
from refstore.records.repository_records import ImportRecord, ImportSource

if TYPE_CHECKING:
    from refstore.operations import commit as commit_operation
    from refstore.operations import import_objects, refs
    from refstore.operations.commit import CommitOptions
else:
    commit_operation = LazyModule("refstore.operations.commit")
    import_objects = LazyModule("refstore.operations.import_objects")
    refs = LazyModule("refstore.operations.refs")

RUNNING: Final = "running"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELED: Final = "canceled"

REPORT_SECONDS: Final = 1.0
"""The interval of an import's heartbeats, while its store answers."""
MISSED_REPORTS: Final = 3
"""An import counts as dead after so many times the longest request to a store without a heartbeat."""
KEPT_MS: Final = 7 * DAY_MS
"""How long the state of an ended import is kept."""
CLOSE_SECONDS: Final = 10.0

_log = event_log.get_logger(__name__)


class TooManyImports(Unavailable):
    code = "too_many_imports"


class _DecidedElsewhere(Exception):
    """Another process decided about the import, so this one leaves it."""


class _ProcessEnding(Exception):
    """This process ends, so another one will continue the import."""


class BackgroundImports:
    """The imports that one process runs. Thread-safe."""

    def __init__(self, *, at_once: int) -> None:
        self._at_once = at_once
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    @property
    def is_closing(self) -> bool:
        """Whether this process ends, and begins and continues no import."""
        return self._closing.is_set()

    def start(self, ctx: Context, branch: BranchName, sources: Sequence[ImportSource], options: CommitOptions) -> str:
        """Begin an import, and return its id. Everything that can be checked before the listing is checked now.

        Raises ForeignNotAllowed, Invalid, DirtyBranch, BranchNotFound, TooManyImports.
        """
        ctx.branches.read_open(branch)
        import_objects.prepare_sources(ctx, sources, only_allowed=True)
        commit_operation.check_clean(ctx, branch)
        self._forget_old(ctx)
        now = ctx.clock.now_ms()
        import_id = ctx.ids.new_id(now)
        record = ImportRecord(
            write_id=ctx.ids.new_id(now),
            state=RUNNING,
            branch=branch,
            sources=tuple(sources),
            message=options.message,
            committer=options.committer,
            metadata=dict(options.metadata),
            allow_empty=options.allow_empty,
            began_ms=now,
            updated_ms=now,
        )

        def begin() -> None:
            ctx.kv.set(keys.background_import(ctx.repo, import_id), encode(record))

        if not self._start_thread(ctx, import_id, record, begin):
            if self.is_closing:
                raise TooManyImports("this process is ending; begin the import in another one")
            raise TooManyImports(
                f"{self._at_once} imports are under way in this process; begin this one when one of them has ended"
            )
        return import_id

    def status(self, ctx: Context, branch: BranchName, import_id: str) -> ImportRecord:
        """Return the state of an import; continue one whose process died, if this process has room. Raises NotFound."""
        record = self._get_record(ctx, branch, import_id)
        if not self._is_dead(ctx, record):
            return record
        taken = _touch_record(ctx, record, attempts=record.attempts + 1, objects=0, skipped_objects=0)

        def take() -> None:
            if not ctx.kv.set_if(keys.background_import(ctx.repo, import_id), encode(record), encode(taken)):
                raise _DecidedElsewhere

        with suppress(_DecidedElsewhere):
            if self._start_thread(ctx, import_id, taken, take):
                _log.warning("import_taken_up", repository=ctx.name, import_id=import_id, attempts=taken.attempts)
        return self._get_record(ctx, branch, import_id)

    def cancel(self, ctx: Context, branch: BranchName, import_id: str) -> None:
        """End it between two pages; nothing is committed then. Raises NotFound, Conflict: it is over, or its commit is
        about to land.
        """
        while True:
            record = self._get_record(ctx, branch, import_id)
            if record.state != RUNNING:
                raise Conflict(f"import {import_id} is {record.state} already")
            if record.commit and (not self._is_dead(ctx, record) or _has_landed(ctx, record.commit)):
                raise Conflict(f"import {import_id} is being committed; look at its status")
            if self.change_record(
                ctx,
                import_id,
                record,
                state=CANCELED,
                error="Canceled: somebody ended the import; nothing was committed",
            ):
                return

    def close(self) -> None:
        """End this process's imports at their next page; other processes may continue them at once."""
        self._closing.set()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread.ident is not None:  # else it is being started, and ends at its first page
                thread.join(CLOSE_SECONDS)

    def _start_thread(self, ctx: Context, import_id: str, record: ImportRecord, begin: Callable[[], None]) -> bool:
        """Begin an import in its own thread; return False if this process has no room for it."""
        thread = threading.Thread(
            target=self._run_attempt, args=(ctx, import_id, record), name=f"refstore-import-{import_id}", daemon=True
        )
        with self._lock:
            if len(self._threads) >= self._at_once or self.is_closing:
                return False
            self._threads.add(thread)
        try:
            begin()
            thread.start()
        except BaseException:
            with self._lock:
                self._threads.discard(thread)
            raise
        return True

    def _run_attempt(self, ctx: Context, import_id: str, record: ImportRecord) -> None:
        attempt = _ImportAttempt(self, ctx, import_id, record, self._closing)
        try:
            attempt.run()
        # the thread's end: what is not known is logged, and the next who asks takes the import up
        except Exception:  # noqa: BLE001
            _log.exception("import_broke_off", repository=ctx.name, import_id=import_id)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _is_dead(self, ctx: Context, record: ImportRecord) -> bool:
        silent_ms = MISSED_REPORTS * 1000 * ctx.waits.objects_io_seconds
        return record.state == RUNNING and ctx.clock.now_ms() - record.updated_ms > silent_ms

    def _get_record(self, ctx: Context, branch: BranchName, import_id: str) -> ImportRecord:
        raw = ctx.kv.get(keys.background_import(ctx.repo, import_id)) if import_id.isalnum() else ABSENT
        record = decode(raw, ImportRecord) if isinstance(raw, bytes) else None
        if record is None or record.branch != branch:
            raise NotFound(
                f"there is no import {import_id[:80]!r} to branch {branch!r}; its state is kept for a week after its "
                "end"
            )
        return record

    def change_record(
        self, ctx: Context, import_id: str, record: ImportRecord, **changes: object
    ) -> ImportRecord | None:
        """Change the record in the KV and return it; None if another process changed it."""
        new = _touch_record(ctx, record, **changes)
        return new if ctx.kv.set_if(keys.background_import(ctx.repo, import_id), encode(record), encode(new)) else None

    def _forget_old(self, ctx: Context) -> None:
        before = ctx.clock.now_ms() - KEPT_MS
        for import_id, raw in ctx.kv.scan_all(keys.imports(ctx.repo)):
            record = decode(raw, ImportRecord)
            if record.began_ms < before and record.updated_ms < before:
                ctx.kv.delete(keys.background_import(ctx.repo, import_id))


class _ImportAttempt:
    """One process's attempt at one import."""

    def __init__(
        self, imports: BackgroundImports, ctx: Context, import_id: str, record: ImportRecord, closing: threading.Event
    ) -> None:
        self._imports = imports
        self._ctx = ctx
        self._id = import_id
        self._record = record
        self._closing = closing
        self._earlier = record.commit
        """The commit that an earlier attempt was about to land."""
        self._told = ctx.clock.monotonic_seconds()

    def run(self) -> None:
        """Run the import. Raises Unavailable where it is not known whether the commit landed."""
        record = self._record
        try:
            if self._complete_if_landed(self._earlier):
                return
            options = commit_operation.CommitOptions(
                message=record.message,
                committer=record.committer,
                metadata=record.metadata,
                allow_empty=record.allow_empty,
            )
            done = import_objects.import_objects(
                self._ctx,
                record.branch,
                record.sources,
                options,
                only_allowed=True,
                watch=self._report_progress,
                about_to_land=self._record_commit,
            )
            self._report(
                state=COMPLETED,
                commit=done.commit.id if done.commit is not None else "",
                objects=done.objects,
                skipped_objects=done.skipped_objects,
            )
        except _DecidedElsewhere:
            return
        except _ProcessEnding:
            with suppress(_DecidedElsewhere):
                self._report(updated_ms=0)
        except RefstoreError as error:
            with suppress(_DecidedElsewhere):
                self._fail(error)
        except Exception as error:  # a defect: whoever waits for the import must hear of it
            with suppress(_DecidedElsewhere):
                self._report(
                    state=FAILED,
                    error=f"unexpected {type(error).__name__}; the service's log says more",
                    error_code="unexpected",
                )
            raise

    def _fail(self, error: RefstoreError) -> None:
        if self._complete_if_landed(self._record.commit) or self._complete_if_landed(self._earlier):
            return
        if self._record.commit and isinstance(error, Unavailable):
            raise error  # its last write may still land; the process that continues the import will know
        _log.error("import_failed", import_id=self._id, code=error.code, error=redact_text(str(error)))
        self._report(state=FAILED, commit="", error=str(error), error_code=error.code)

    def _complete_if_landed(self, commit: str) -> bool:
        if not commit or not _has_landed(self._ctx, commit):
            return False
        self._report(state=COMPLETED, commit=commit)
        return True

    def _report_progress(self, objects: int, skipped: int) -> None:
        if self._closing.is_set():
            raise _ProcessEnding
        now = self._ctx.clock.monotonic_seconds()
        if now - self._told >= REPORT_SECONDS:
            self._told = now
            self._report(objects=objects, skipped_objects=skipped)

    def _record_commit(self, commit: CommitId) -> None:
        self._report(commit=commit)

    def _report(self, **changes: object) -> None:
        """Change the record. Raises _DecidedElsewhere where another process has decided about the import."""
        new = self._imports.change_record(self._ctx, self._id, self._record, **changes)
        if new is None:
            raise _DecidedElsewhere
        self._record = new


def _has_landed(ctx: Context, commit: str) -> bool:
    return ctx.markers.has_landed(CommitId(commit))


def _touch_record(ctx: Context, record: ImportRecord, **changes: object) -> ImportRecord:
    now = ctx.clock.now_ms()
    return msgspec.structs.replace(record, **{"updated_ms": now, **changes}, write_id=ctx.ids.new_id(now))


def find_landed_commit(ctx: Context, record: ImportRecord) -> tuple[CommitId, StoredCommit] | None:
    """Return the commit that the import made; None if it made none, or the commit does not exist any more."""
    if record.state != COMPLETED or not record.commit:
        return None
    with suppress(CommitNotFound):
        return CommitId(record.commit), refs.get_commit(ctx, CommitId(record.commit))
    return None
