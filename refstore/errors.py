"""The error tree, grouped by what a handler would do about it.

    RefstoreError
    ├── Invalid            the call is wrong; change it (HTTP 400)
    │   ├── LakeClosed         the lake was closed before the call
    │   ├── LakeReadOnly       the lake was opened to read only, and the call changes something
    │   ├── InvalidName        a repository, branch, tag, token or address is malformed
    │   ├── InvalidPath        a path is empty, too long, or hostile
    │   ├── InvalidParts       the parts that a multipart upload is to be joined from are not those that were written
    │   ├── InvalidToken       an issued address's token is forged, expired, or bound to something else
    │   ├── InvalidSettings    a setting or URL is malformed, or two settings contradict each other
    │   │   └── DurationsDiffer    this process's durations are not those that the lake's processes agreed on
    │   └── InvalidDocument    what decides about deletions is malformed; the message says where
    │       ├── InvalidRules       the retention rules
    │       └── InvalidPurge       the document of the purge
    ├── NotFound           what is named is not there; name something else (404)
    │   ├── RepositoryNotFound
    │   ├── BranchNotFound
    │   ├── TagNotFound
    │   ├── CommitNotFound
    │   ├── ObjectNotFound
    │   ├── AddressNotFound
    │   └── UploadNotFound     a multipart upload was completed, aborted, or has expired
    ├── Gone               it was there and is not any more, or is on its way out; nothing to retry (410)
    │   └── TransactionEnded   its lease ran out, or its branch was deleted; nothing of it was merged
    ├── Conflict           the state does not allow it; look, then decide (409)
    │   ├── AlreadyExists
    │   ├── PathChanged        what the caller has read at the path is not there any more
    │   ├── NothingToCommit
    │   ├── DirtyBranch        uncommitted changes stand in the way
    │   ├── MergeConflict      carries the conflicting paths
    │   ├── AlreadyLinked      an issued address was linked before
    │   ├── RunUnderWay        another run of the offline job is marking this repository
    │   ├── RunStopped         an operator stopped the run
    │   ├── PruneStopped       a check of a prune failed, and nothing was marked; carries the word of consent
    │   ├── ConsentNeeded      new rules would remove legal holds or pins that the call does not name; carries the names
    │   └── Contention         others kept winning the race; the same call may be made again
    ├── Unavailable        a store cannot be used now; the same call may be made again, later (503)
    │   ├── KVUnavailable
    │   │   └── KVRefused          it refuses this process's user or password; an operator must act
    │   ├── OutcomeUnknown     a write may or may not have landed, and only the caller can tell what to do about it
    │   ├── ObjectsUnavailable
    │   │   ├── ObjectsRefused     it refuses this process's credentials, clock or requests; an operator must act
    │   │   └── ManifestBehind     the change was made, the manifest lacks it; do not make the call again
    │   ├── AuditUnavailable   the audit log cannot be written, so nothing was changed
    │   │   └── AuditRefused       its store refuses this process; an operator must act
    │   ├── KVSettling         other servers of the KV answer than before; deletion waits until it was looked for losses
    │   └── DeadlineExceeded   the operation's own time is up; what it did is safe to do again
    ├── StoreMisconfigured a server is set up so that data could be lost; an operator must act (500)
    │   └── WrongStore         the KV, the object store or a namespace is not the one of this lake
    ├── ForeignNotAllowed  data of others lies where an operator has not allowed this process to read (403)
    ├── MissingExtra       an optional dependency is not installed; carries the install hint
    └── Corrupt            stored bytes cannot be trusted; nothing that depends on them is deleted (500)
        ├── KVWentBack         the KV lost writes that had consequences; an operator must say what becomes of them
        │   └── KVReconciling      `refstore kv reconcile` has begun and not ended: nothing new was found
        ├── CorruptRecord      a KV value
        ├── CorruptRange       a Parquet range or metarange, or one that is missing
        └── CorruptObject

`code` is stable and append-only (`tests/unit/test_errors.py` pins the table): machines match on it,
people read the message. A message says what happened, then, after a semicolon, what to do next.
What callers test for has a base of Python's, too: Invalid is a ValueError, NotFound and Gone are
LookupErrors. None is an OSError, which drivers and clients catch; file objects translate at their edge.
Errors know nothing of HTTP; the numbers above are the API's table, told here once for orientation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from refstore.distribution import install_command


class RefstoreError(Exception):
    """Whatever refstore raises on purpose."""

    code: ClassVar[str] = "refstore"
    retryable: ClassVar[bool] = False
    """Whether the very same call may be made again with some hope. A program may repeat by it, so it is False where an
    operator must act first.
    """
    may_have_landed: ClassVar[bool] = False
    """Whether what the call was to do may have happened all the same: the audit log then says `unknown`."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle it whatever its `__init__` takes: the processes of a pool send errors to each other."""
        return _unpickle, (type(self), self.args), self.__dict__


def codes_of(kind: type[RefstoreError]) -> frozenset[str]:
    """Return the codes of a group of errors."""
    return frozenset({kind.code}.union(*map(codes_of, kind.__subclasses__())))


class Invalid(RefstoreError, ValueError):
    code = "invalid"


class LakeClosed(Invalid):
    code = "lake_closed"


class LakeReadOnly(Invalid):
    code = "lake_read_only"

    def __init__(
        self,
        message: str = "the lake was opened to read only, so nothing was changed; open it without read_only",
    ) -> None:
        super().__init__(message)


class InvalidName(Invalid):
    code = "invalid_name"


class InvalidPath(Invalid):
    code = "invalid_path"


class InvalidParts(Invalid):
    code = "invalid_parts"

    def __init__(self, message: str, *, fault: str) -> None:
        super().__init__(message)
        self.fault = fault
        """`missing`: one was not written, or otherwise, or is not all there; `order`: they are not in order; `small`:
        one is too small.
        """


class InvalidToken(Invalid):
    code = "invalid_token"


class InvalidSettings(Invalid):
    code = "invalid_settings"


class DurationsDiffer(InvalidSettings):
    code = "durations_differ"


class InvalidDocument(Invalid):
    """A JSON document that decides what is deleted is malformed, or contradicts itself."""

    code = "invalid_document"
    document: ClassVar[str] = "document"
    """What people call it."""
    shown_in: ClassVar[str] = "docs/"
    """The page that shows its format."""

    def __init__(self, reason: str, *, place: str = "") -> None:
        """`place`: the path of a field, such as `rules[0].filter`, or line and column; '': the whole document."""
        super().__init__(f"{self.document}, {place}: {reason}" if place else f"{self.document}: {reason}")


class InvalidRules(InvalidDocument):
    code = "invalid_rules"
    document = "retention rules"
    shown_in = "docs/retention.md"


class InvalidPurge(InvalidDocument):
    code = "invalid_purge"
    document = "purge document"
    shown_in = "docs/purge.md"


class NotFound(RefstoreError, LookupError):
    code = "not_found"

    def __init__(self, message: str, *, unknown: str = "") -> None:
        super().__init__(message)
        self.unknown = unknown
        """The name that is neither a branch nor a tag, for a suggestion; '': there is none to make."""


class RepositoryNotFound(NotFound):
    code = "repository_not_found"


class BranchNotFound(NotFound):
    code = "branch_not_found"


class TagNotFound(NotFound):
    code = "tag_not_found"


class CommitNotFound(NotFound):
    code = "commit_not_found"


class ObjectNotFound(NotFound):
    code = "object_not_found"


class AddressNotFound(NotFound):
    code = "address_not_found"


class UploadNotFound(NotFound):
    code = "upload_not_found"


class Gone(RefstoreError, LookupError):
    code = "gone"


class TransactionEnded(Gone):
    code = "transaction_ended"


class Conflict(RefstoreError):
    code = "conflict"


class AlreadyExists(Conflict):
    code = "already_exists"


class PathChanged(Conflict):
    code = "path_changed"


class NothingToCommit(Conflict):
    code = "nothing_to_commit"


class DirtyBranch(Conflict):
    code = "dirty_branch"


class MergeConflict(Conflict):
    code = "merge_conflict"

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        """The conflicting paths, in order; a bounded sample when there are very many."""


class AlreadyLinked(Conflict):
    code = "already_linked"


class RunUnderWay(Conflict):
    code = "run_under_way"


class RunStopped(Conflict):
    code = "run_stopped"


class ConsentNeeded(Conflict):
    code = "consent_needed"

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = tuple(names)
        """What the call has to name, to remove it."""


class PruneStopped(Conflict):
    code = "prune_stopped"

    def __init__(self, message: str, words: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.words = tuple(words)
        """What the call has to consent to; `no-consent-possible`: nothing helps."""


class Contention(Conflict):
    code = "contention"
    retryable = True
    may_have_landed = True


class Unavailable(RefstoreError):
    code = "unavailable"
    retryable = True
    may_have_landed = True


class KVUnavailable(Unavailable):
    code = "kv_unavailable"

    def __init__(self, message: str, *, nothing_done: bool = False) -> None:
        super().__init__(message)
        self.nothing_done = nothing_done
        """Whether it is certain that no write of the call was performed, nor will be; if not, any of them may have
        been.
        """


class KVRefused(KVUnavailable):
    code = "kv_refused"
    retryable = False


class OutcomeUnknown(Unavailable):
    code = "outcome_unknown"


class ObjectsUnavailable(Unavailable):
    code = "objects_unavailable"


class ObjectsRefused(ObjectsUnavailable):
    code = "objects_refused"
    retryable = False


class ManifestBehind(ObjectsUnavailable):
    code = "manifest_behind"
    retryable = False

    def __init__(self, message: str, *, happened: str) -> None:
        super().__init__(message)
        self.happened = happened
        """What the call did, with what follows from it."""


class AuditUnavailable(Unavailable):
    code = "audit_unavailable"


class AuditRefused(AuditUnavailable):
    code = "audit_refused"
    retryable = False


class KVSettling(Unavailable):
    code = "kv_settling"

    def __init__(self, message: str, *, until: datetime | None = None) -> None:
        super().__init__(message)
        self.until = until
        """When the wait for operations ends; None: the next pass tells."""


class DeadlineExceeded(Unavailable):
    code = "deadline_exceeded"


class StoreMisconfigured(RefstoreError):
    code = "store_misconfigured"


class WrongStore(StoreMisconfigured):
    code = "wrong_store"


class ForeignNotAllowed(RefstoreError):
    code = "foreign_not_allowed"


class MissingExtra(RefstoreError):
    code = "missing_extra"

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an optional dependency; install it with: {install_command(extra)}")
        self.extra = extra


class Corrupt(RefstoreError):
    code = "corrupt"


class KVWentBack(Corrupt):
    code = "kv_went_back"


class KVReconciling(KVWentBack):
    code = "kv_reconciling"


class CorruptRecord(Corrupt):
    code = "corrupt_record"


class CorruptRange(Corrupt):
    code = "corrupt_range"


class CorruptObject(Corrupt):
    code = "corrupt_object"


def _unpickle(kind: type[RefstoreError], args: tuple[object, ...]) -> RefstoreError:
    return kind.__new__(kind, *args)
