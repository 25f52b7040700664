"""A lake: one KV and one object store, and the repositories in them.

A repository's name stands for an id that is never used again. The repository's data lives in a namespace that no other
repository may have, contain or lie in. So the reaper or offline job of one repository cannot delete data of another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from refstore import lake_identity
from refstore.agreed_durations import AgreedDurations
from refstore.audit import AuditLog, EntryDraft
from refstore.context import Context
from refstore.core import deadline, event_log, ids, user_metadata
from refstore.core.clock import Clock, SystemClock, format_utc
from refstore.core.ids import Ids, RandomIds, RepositoryId, RepositoryName
from refstore.core.redaction import redact_text, redact_url
from refstore.core.safety import SHARED, Durations, FixedDurations, Safety
from refstore.core.signing_keys import SigningKey
from refstore.core.suggestions import find_nearest
from refstore.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    CorruptRecord,
    Invalid,
    InvalidSettings,
    LakeReadOnly,
    NotFound,
    RepositoryNotFound,
    StoreMisconfigured,
    Unavailable,
)
from refstore.foreign_reads import ForeignReads
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, KV
from refstore.kv.retries import RetryingKV
from refstore.namespaces import CLAIMS, NAMESPACE_OBJECT, check_new, check_owner, folder_url, owner_of
from refstore.objects import child, make_objects, named_stores, open_objects
from refstore.objects.base import ObjectStore, put_if_new
from refstore.objects.named_stores import NamedStores
from refstore.objects.store_urls import copy_delete_versions, parse_store_url
from refstore.public_methods import wrap_public_methods
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.repository_records import ClearedRepository, RepositoryRecord
from refstore.repository import Repository
from refstore.versioning import manifest
from refstore.versioning.branches import Branches
from refstore.versioning.commits import graph
from refstore.versioning.commits.caches import Caches
from refstore.versioning.issuance import AddressTokenIssuer, signing_keys_of
from refstore.versioning.manifest import BranchCreated, CommitLanded, Manifest, RepositoryCreated, RepositoryDeleted
from refstore.versioning.markers import REPOSITORY_DELETED_CAUSE
from refstore.versioning.staging import Staging

if TYPE_CHECKING:
    from refstore.kv_recovery.fence import SettlementWait
    from refstore.versioning.commits.trees import Trees

OWN_STORE: Final = f"{named_stores.RELATIVE}:///"
"""The lake's own objects, as a record would name them."""
_ATTEMPTS: Final = 16

_log = event_log.get_logger(__name__)


@wrap_public_methods
@dataclass(slots=True)
class Lake:
    """A KV, an object store, and the repositories in them.

    Open a lake with `refstore.open`. Close it, or use it as a context manager. Threads may share it.
    """

    kv: KV
    objects_url: str
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    safety: Safety = field(default_factory=Safety)
    """The durations that the lake was opened with; `durations` has those that hold now."""
    signing_keys: Sequence[SigningKey] = ()
    open_store: Callable[[str], ObjectStore] = open_objects
    """Opens a store that is there, and makes none."""
    stores: NamedStores = field(default_factory=dict[str, Mapping[str, str]])
    """How the stores are reached that namespaces name (`stores`)."""
    id: str = ""
    """What the KV and the object store say whose they are. '': nobody looked, because `open_lake_at` did not open this
    lake; or it is a new one that was opened to read only.
    """
    import_from: Sequence[str] = ()
    """URLs of the folders below which foreign objects may be read (the setting `import_from`)."""
    audit_log: AuditLog | None = None
    """None: the lake's own, in its object store."""
    read_purge_key: Callable[[], bytes | None] = field(default=lambda: None, repr=False)
    """Returns the key of the purge; None: it keeps no index and no ledger of ids."""
    _agreed: AgreedDurations | None = None
    foreign: ForeignReads = field(init=False)
    """Reads foreign objects below `import_from`."""
    _issuer: AddressTokenIssuer | None = None
    _keys: Sequence[SigningKey] = ()
    _stores: dict[RepositoryId, ObjectStore] = field(default_factory=dict[RepositoryId, ObjectStore])
    """The namespaces that say that they are the repository's."""
    _own_store: ObjectStore | None = None
    _settled_servers: dict[str, str] | None = None
    """The servers of the KV under which deletion does not wait, as far as this process has seen."""
    _caches: Caches = field(default_factory=Caches)
    """All repositories share the caches, because a service opens a repository for each request."""

    def __post_init__(self) -> None:
        """Raises InvalidName if `import_from` holds something that is no URL of a folder."""
        self.foreign = ForeignReads(
            self.kv, self.clock, self.open_url, prefixes=self.import_from, objects_url=self.objects_url
        )

    def agree(self, *, explicit: Mapping[str, str], must_exist: bool, read_only: bool, check_identity: bool) -> None:
        """Look that the KV and the object store belong to one lake, and take the durations that its processes have
        agreed on. Arguments and errors are those of `open_lake_at`, which calls it.
        """
        lake_identity.check_kv_open(self.kv)
        if must_exist:
            self._check_exists()
        if check_identity:
            self._agree_on_id(read_only=read_only)
        own = self.safety
        agreed = self._agreed = AgreedDurations(
            self.kv, self.clock, self.ids, own, explicit=explicit, read_only=read_only
        )
        self.safety = agreed.safety
        if self.safety.objects_io_seconds != own.objects_io_seconds:
            self._close_stores()
            io_seconds = self.safety.objects_io_seconds
            self.open_store = partial(open_objects, io_timeout_seconds=io_seconds, read_only=read_only)

    def _agree_on_id(self, *, read_only: bool) -> None:
        """Look that the KV and the object store belong to one lake, before anything else is read or written."""

        def make_store() -> None:
            make_objects(self.resolve(self.objects_url))

        new_id = self.ids.new_id(self.clock.now_ms())
        self.id = lake_identity.agree_on_id(self.kv, self.own_store, new_id, make_store, read_only=read_only)
        self._check_holder(self.own_store, OWN_STORE)

    def _check_exists(self) -> None:
        """Raise NotFound if neither the KV nor the object store is of a lake; WrongStore if only one of them is."""
        if self.kv.get(keys.LAKE) is ABSENT and next(self.repository_records(), None) is None:
            self._agree_on_id(read_only=True)
            raise NotFound(f"there is no lake in {redact_url(self.objects_url)}; make it with: refstore.create(...)")

    @property
    def _folder(self) -> Path | None:
        """The folder that has the KV, and the lake's own objects, too; None: there is none."""
        objects = parse_store_url(self.objects_url)
        folder = next((file.parent for file in self.kv.local_files), None)
        is_above = folder is not None and objects.scheme == "file" and Path(objects.path).is_relative_to(folder)
        return folder if is_above else None

    def _check_holder(self, store: ObjectStore, recorded_url: str) -> None:
        """Raise WrongStore if another copy of this lake's folder holds a store that lies outside of it."""
        if self.id and self._folder is not None:
            lake_identity.check_holder(store, self.kv, recorded_url)

    def take_stores(self, *, dry_run: bool = False, must_answer: bool = False) -> list[str]:
        """Hold what other copies of this lake's folder hold outside of it, and return its URLs. For an operator who
        has made sure that no other copy is used any more.

        A namespace that is not its repository's is left alone, and one that does not answer unless `must_answer`: who
        opens it later looks again.
        """
        taken: list[str] = []
        if self._folder is None:
            return taken
        if lake_identity.take_store(self.own_store, self.kv, OWN_STORE, dry_run=dry_run):
            taken.append(redact_url(self.own_store.url))
        for repo, url in lake_identity.list_namespaces(self.kv):
            try:
                with closing(self.open_url(url)) as store:
                    is_own = owner_of(store) == repo
                    if is_own and lake_identity.take_store(store, self.kv, url, dry_run=dry_run):
                        taken.append(redact_url(store.url))
            except (Unavailable, StoreMisconfigured, InvalidSettings) as error:
                if must_answer:
                    raise
                shown = redact_url(url)
                _log.warning("namespace_not_taken", repository=repo, namespace=shown, error=redact_text(repr(error)))
        return taken

    def close(self) -> None:
        """Close the KV, and every store that a repository has opened. Later calls raise LakeClosed."""
        self._close_stores()
        self.foreign.close()
        if isinstance(self.kv, RetryingKV):
            self.kv.close_for_good()
        else:
            self.kv.close()

    def _close_stores(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        if self._own_store is not None:
            self._own_store.close()
            self._own_store = None

    def __repr__(self) -> str:
        return f"<Lake {redact_url(self.objects_url)!r}>"

    def __enter__(self) -> Lake:
        return self

    def __reduce__(self) -> NoReturn:
        raise Invalid(
            "a lake cannot be pickled or copied, as its URLs may hold secrets; in the other process, open it by "
            "refstore.open"
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def durations(self) -> Durations:
        """The durations that hold now. A lake that was made without `open_lake_at` has its own, unchecked ones."""
        return self._agreed or FixedDurations(self.safety)

    @property
    def audit(self) -> AuditLog:
        """Who changed what, when, from where."""
        if self.audit_log is None:
            self.audit_log = AuditLog(self.kv, lambda: self.own_store, self.clock, self.ids, self.durations)
        return self.audit_log

    @property
    def own_store(self) -> ObjectStore:
        """What lies beside the repositories: the audit log. The lake closes it."""
        if self._own_store is None:
            self._own_store = self.open_url(self.objects_url)
        return self._own_store

    def resolve(self, url: str) -> str:
        """Return the URL of a store with the options by which it is reached. Raises InvalidSettings."""
        return named_stores.resolve_url(url, self.stores, self.objects_url)

    def namespace_url(self, record: RepositoryRecord) -> str:
        """Return the URL of a repository's namespace as it is now."""
        return named_stores.absolute_url(record.namespace, self.objects_url)

    def open_url(self, url: str) -> ObjectStore:
        """Open a store by a URL as settings and records have it. The caller closes it."""
        return self.open_store(self.resolve(url))

    def check_kv(self) -> None:
        """Look that the KV answers, and is the lake's. Raises WrongStore, KVUnavailable."""
        if self.id:
            lake_identity.check_kv(self.kv, self.id)
        else:
            self.kv.scan(keys.REPOSITORIES, limit=1)

    def check_objects(self) -> None:
        """Look that the object store answers, and is the lake's. Raises WrongStore, ObjectsUnavailable."""
        if self.id:
            lake_identity.check_store(self.own_store, self.id)
        else:
            lake_identity.read_id(self.own_store)

    def owner_of(self, record: RepositoryRecord) -> str | None:
        """Return the id of the repository that a repository's namespace says it belongs to; None: it says nothing."""
        known = self._stores.get(record.id)
        if known is not None:
            return owner_of(known)
        with closing(self.open_url(record.namespace)) as objects:
            return owner_of(objects)

    @property
    def manifest(self) -> Manifest:
        """The repositories, as far as they must survive the KV."""
        return Manifest(self.own_store, self.kv, keys.UNWRITTEN_LAKE_MANIFEST)

    def create_repository(
        self,
        name: str,
        *,
        namespace: str | None = None,
        default_branch: str = "main",
        metadata: dict[str, str] | None = None,
        grace_seconds: int | None = None,
        given_namespace: str = "",
        is_bucket: bool = False,
    ) -> Repository:
        """Create an empty repository. Raises AlreadyExists, Conflict (the namespace is taken), InvalidName.

        `namespace`: the URL that the repository's data lives under; by default a folder in the lake's object store.
        `grace_seconds`: how long a deleted object can be restored; by default `Safety.grace_seconds`.
        `given_namespace`: the namespace as a client of lakeFS's called it, which the API shows instead of the URL.
        `is_bucket`: whether an S3 client creates it as a bucket.

        The name is written last: no client sees the repository before, and a failure gives the namespace back. The
        namespace stays claimed after a crash, or if the KV does not confirm whether the name was written.
        """
        checked = ids.repository_name(name)
        _ = self.durations.safety  # which hears that the lake has moved to another KV
        branch = ids.branch_name(default_branch)
        user_metadata.check_user_metadata(metadata or {}, f"repository {checked!r}")
        if self.kv.get(keys.repository(checked)) is not ABSENT:
            raise self._already_exists(checked)
        now = self.clock.now_ms()
        repo = ids.new_repository_id(self.ids, checked, now)
        url = named_stores.namespace_url(
            namespace or child(self.objects_url, repo), self.stores, self.objects_url, self._folder
        )
        grace = -1 if grace_seconds is None else grace_seconds
        record = RepositoryRecord(repo, url, branch, now, metadata or {}, grace, 0, "", given_namespace, is_bucket)
        check_new(self.namespace_url(record), self.objects_url)
        with ExitStack() as undo:
            undo.callback(self._undo_kv, url, repo)
            self._claim_key(url, repo)
            undo.callback(self._release_store, url, repo)
            self._claim_store(url, repo)
            ctx = self.context(checked, record)
            root = StoredCommit((), "", "", (), now, "", "Repository created")
            head = graph.commit_id(root)
            self.kv.set(keys.commit(repo, head), encode(root))
            self.kv.set(keys.landed_mark(repo, head), b"")
            token = Staging(self.kv, repo).new_token(branch, self.ids, self.clock)
            Branches(self.kv, repo, self.ids, self.clock).create(branch, head, token)
            undo.callback(self._undo_manifest, url, repo)
            ctx.manifest.add(BranchCreated(branch, token, head, now))
            ctx.manifest.add(CommitLanded(head, encode(root), branch, token))
            take_back = undo.pop_all()  # whether the name is written is not certain while the KV has not said so
        try:
            landed = (
                record
                if self.kv.set_if(keys.repository(checked), ABSENT, encode(record))
                else self._find_landed(checked, repo)
            )
        except Unavailable:
            landed = self._find_landed(checked, repo)
            if landed is None:
                raise  # the write may still arrive, and its repository would rest on the claim
        if landed is None:
            take_back.close()
            raise self._already_exists(checked)
        self.manifest.add_landed(
            RepositoryCreated(checked, repo, encode(landed)), f"repository {checked!r} was created"
        )
        return Repository(checked, landed, lambda: ctx)

    def repository(self, name: str) -> Repository:
        """Return an open repository. Raises RepositoryNotFound."""
        checked = ids.repository_name(name)
        record = self._find_record(checked)
        if record is None or record.closed_ms:
            raise _not_found(checked, record)
        repository = self._repository(checked, record)
        _ = repository.context  # which raises for a namespace that is not the repository's
        return repository

    def _repository(self, name: RepositoryName, record: RepositoryRecord) -> Repository:
        return Repository(name, record, lambda: self.context(name, record))

    def _suggest(self, error: NotFound) -> None:
        """Add to the error which repository may be meant."""
        unknown, error.unknown = error.unknown, ""
        if not unknown:
            return
        with suppress(Unavailable, CorruptRecord):
            records = self.kv.scan(keys.REPOSITORIES)
            names = [each for each, value in records if not decode(value, RepositoryRecord).closed_ms]
            if close := find_nearest(unknown, names):
                error.args = (f"{str(error).partition('; ')[0]}; did you mean {close!r}?",)

    def settlement_wait(self) -> SettlementWait | None:
        """Return until when nothing is deleted, and why, after other servers of the KV answer; None: deletion goes on.
        Raises Unavailable, StoreMisconfigured.
        """
        from refstore.kv_recovery import fence

        servers = fence.read_servers(self.kv)
        if servers == self._settled_servers:
            return None
        wait = fence.find_settlement_wait(self.own_store, self.clock, self.durations.waits, servers)
        if wait is None:
            self._settled_servers = servers
        return wait

    def undrained_context(self, name: str) -> Context:
        """Return the context of an open repository, or of one that is not drained yet. Raises RepositoryNotFound."""
        checked = ids.repository_name(name)
        record = self._find_record(checked)
        if record is None:
            raise _not_found(checked)
        return self.context(checked, record)

    def repositories(self, *, prefix: str = "", after: str = "") -> Iterator[Repository]:
        """List the repositories in order of name, after the name `after`. None of their namespaces is opened yet."""
        for name, record in self.repository_records(prefix=prefix, after=after):
            yield self._repository(name, record)

    def repository_records(
        self, *, prefix: str = "", after: str = ""
    ) -> Iterator[tuple[RepositoryName, RepositoryRecord]]:
        """List the records of the open repositories, in order of name."""
        for name, record in self.all_repositories(prefix=prefix, after=after):
            if not record.closed_ms:
                yield name, record

    def all_repositories(
        self, *, prefix: str = "", after: str = ""
    ) -> Iterator[tuple[RepositoryName, RepositoryRecord]]:
        """List the open repositories, and the deleted ones that are not drained yet, in order of name."""
        for name, value in self.kv.scan_all(keys.REPOSITORIES, prefix=prefix, after=after):
            yield ids.repository_name(name), decode(value, RepositoryRecord)

    def set_metadata(
        self, name: str, *, put: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> Mapping[str, str]:
        """Change a repository's metadata, and return it as it is then. Raises NotFound, Contention, Invalid."""
        checked = ids.repository_name(name)
        _ = self.durations.safety  # which hears that the lake has moved to another KV
        key = keys.repository(checked)
        gone = set(remove)
        for _ in range(_ATTEMPTS):
            raw = self.kv.get(key)
            record = decode_optional(raw, RepositoryRecord)
            if record is None or record.closed_ms:
                raise _not_found(checked, record)
            metadata = {name: value for name, value in {**record.metadata, **(put or {})}.items() if name not in gone}
            user_metadata.check_user_metadata(metadata, f"repository {checked!r}")
            changed = msgspec.structs.replace(record, metadata=metadata)
            if metadata == record.metadata or self.kv.set_if(key, raw, encode(changed)):
                return metadata
        raise Contention(f"others kept changing repository {name!r}; make the same call again")

    def delete_repository(self, name: str) -> None:
        """Delete a repository. The reaper deletes uncommitted data; the offline job deletes committed data.

        The name is free again after the reaper has drained the repository: not before `deleted_name_hold` says. Raises
        RepositoryNotFound, Conflict (the rules have legal holds).
        """
        _ = self.durations.safety  # which hears that the lake has moved to another KV
        opened = self.repository(name)
        before = {
            "id": opened.record.id,
            "namespace": redact_url(self.namespace_url(opened.record)),
            "default_branch": opened.default_branch,
            "created_ms": opened.record.created_ms,
        }
        with self.audit.act("repository.delete", repository=opened.name, before=before) as draft:
            self._delete_repository(opened.name, opened.record.id, draft)

    def _delete_repository(self, checked: RepositoryName, first: RepositoryId, draft: EntryDraft) -> None:
        from refstore.operations import branch as branch_operation
        from refstore.operations import rules_document

        key = keys.repository(checked)
        for _ in range(_ATTEMPTS):
            raw = self.kv.get(key)
            record = decode_optional(raw, RepositoryRecord)
            if record is None or record.closed_ms or record.id != first:
                return  # our own write, or another's, got there
            rules_document.check_no_holds(self.context(checked, record))
            if self.kv.set_if(key, raw, encode(msgspec.structs.replace(record, closed_ms=max(1, self.clock.now_ms())))):
                draft.landed = True
                # after it was decided, or a crash in between would make a rebuilt KV call a live repository deleted
                self.manifest.add_deletion(RepositoryDeleted(checked, record.id))
                branch_operation.close_all(self.context(checked, record), REPOSITORY_DELETED_CAUSE)
                return
        raise Contention(f"others kept changing repository {checked!r}; make the same call again")

    def repositories_of_name(self, name: str) -> Iterator[tuple[Context, RepositoryRecord]]:
        """List all repositories of the name whose namespace is not free: the present one, then deleted ones, the newest
        first.
        """
        checked = ids.repository_name(name)
        record = self._find_record(checked)
        if record is not None:
            yield self.context(checked, record), record
        drained = [
            decode(value, RepositoryRecord)
            for _, value in self.kv.scan_all(keys.CLOSED_REPOSITORIES, prefix=f"{checked}.")
        ]
        for each in sorted(drained, key=lambda each: -each.created_ms):
            if record is None or each.id != record.id:
                yield self.context(checked, each), each

    def cleared_repositories(self, name: str) -> Iterator[tuple[RepositoryId, ClearedRepository]]:
        """List the deleted repositories of the name whose data was deleted, or is being deleted."""
        for repo, value in self.kv.scan_all(keys.CLEARED_REPOSITORIES, prefix=f"{ids.repository_name(name)}."):
            yield ids.repository_id(repo), decode(value, ClearedRepository)

    def current_signing_keys(self) -> Sequence[SigningKey]:
        """Return the keys that sign the tokens of issued addresses: the configured ones, or one that the KV keeps.

        The first key signs; all verify.
        """
        if not self._keys:
            self._keys = signing_keys_of(self.kv, self.signing_keys)
        return self._keys

    def context(self, name: RepositoryName, record: RepositoryRecord) -> Context:
        """Return a repository's context. The reaper and the offline job work on deleted repositories, too. Raises
        WrongStore (the namespace is not the repository's), ObjectsUnavailable.
        """
        objects = self._stores.get(record.id)
        if objects is None:
            objects = self._stores[record.id] = self._open_namespace(record)
        if self._issuer is None:
            self._issuer = AddressTokenIssuer(self.current_signing_keys, self.clock)
        shown = (record.given_namespace or objects.url).partition("?")[0].rstrip("/")
        grace = self.safety.grace_seconds if record.grace_seconds < 0 else float(record.grace_seconds)

        @cache
        def make_trees() -> Trees:
            from refstore.versioning.commits.trees import Trees

            return Trees(objects, self.ids, self.clock, caches=self._caches)

        return Context(
            record.id,
            name,
            self.kv,
            objects,
            make_trees,
            self._issuer,
            self.clock,
            self.ids,
            self.durations,
            self.foreign,
            grace,
            self.audit,
            lambda: self.own_store,
            self.read_purge_key,
            shown,
        )

    def _open_namespace(self, record: RepositoryRecord) -> ObjectStore:
        url = copy_delete_versions(self.resolve(record.namespace), self.resolve(self.objects_url))
        objects = self.open_store(url)
        try:
            check_owner(objects, record)
            self._check_holder(objects, record.namespace)
        except BaseException:
            objects.close()
            raise
        return objects

    def _claim_key(self, url: str, repo: RepositoryId) -> None:
        """Claim the namespace among the repositories of this lake. Raises Conflict."""
        claim = keys.namespace(folder_url(url))
        own = folder_url(named_stores.absolute_url(url, self.objects_url))
        if not self.kv.set_if(claim, ABSENT, repo.encode()) and self.kv.get(claim) != repo.encode():
            raise Conflict(f"namespace {own} belongs to a repository already; give each repository its own")
        for recorded, _ in self.kv.scan_all(keys.NAMESPACES):
            other = folder_url(named_stores.absolute_url(recorded, self.objects_url))
            if recorded != claim.name and (other.startswith(own) or own.startswith(other)):
                raise Conflict(
                    f"namespace {own} and {other}, which belongs to a repository, lie in each other; choose another"
                )

    def _claim_store(self, url: str, repo: RepositoryId) -> None:
        """Claim the namespace among other lakes, whose KV is not known here. Raises Conflict, and WrongStore if the
        lake's object store has lost the lake's id: then it is not made anew.
        """
        if self.id:
            lake_identity.check_store(self.own_store, self.id)
        else:
            make_objects(self.resolve(self.objects_url))
        make_objects(self.resolve(url))
        with closing(self.open_url(url)) as objects:
            try:
                put_if_new(objects, NAMESPACE_OBJECT, repo.encode())
            except AlreadyExists:
                if owner_of(objects) != repo:  # else the reply was lost, and the driver asked again
                    raise Conflict(
                        f"namespace {redact_url(objects.url)} holds the data of another lake's repository; choose an "
                        "empty one"
                    ) from None

    def _release_store(self, url: str, repo: RepositoryId) -> None:
        """Undo `_claim_store`, if the claim is this repository's.

        `_undo_kv` comes later: until then no other repository of this lake can claim the namespace.
        """
        with self._log_undo_errors(url, repo), closing(self.open_url(url)) as objects:
            if owner_of(objects) == repo:
                objects.delete_many(CLAIMS)

    def _undo_manifest(self, url: str, repo: RepositoryId) -> None:
        """Undo what a failed creation wrote to the manifest, while the namespace is still this repository's."""
        with self._log_undo_errors(url, repo), closing(self.open_url(url)) as objects:
            objects.delete_many([info.key for info in objects.list(manifest.WAITING_FOLDER)])

    def _undo_kv(self, url: str, repo: RepositoryId) -> None:
        """Undo what a failed creation wrote to the KV. No client has seen it, because the name is written last."""
        with self._log_undo_errors(url, repo):
            self.kv.set_if(keys.namespace(folder_url(url)), repo.encode(), ABSENT)
            for partition in (keys.branches(repo), keys.commits(repo), keys.landed_commits(repo), keys.tokens(repo)):
                self.kv.delete_range(partition, "", keys.LAST_CODE_POINT)

    @contextmanager
    def _log_undo_errors(self, url: str, repo: RepositoryId) -> Generator[None, None, None]:
        """Log what fails: what ended the creation is what its caller must hear of."""
        try:
            with deadline.lift():
                yield
        except LakeReadOnly:
            return  # nothing was done
        except Exception as error:  # noqa: BLE001  # likewise
            _log.warning(
                "namespace_not_given_back", repository=repo, namespace=redact_url(url), error=redact_text(repr(error))
            )

    def _find_landed(self, name: RepositoryName, repo: RepositoryId) -> RepositoryRecord | None:
        """Return the record if the name was written although the write was not confirmed; None: not written so far.

        The repository may have been deleted and drained since. The keys are read in the order in which its record
        moves, so that the record is not missed on its way.
        """
        with deadline.lift():
            record = self._find_record(name)
            if record is None or record.id != repo:
                record = decode_optional(self.kv.get(keys.closed_repository(repo)), RepositoryRecord)
            return record

    def _find_record(self, name: RepositoryName) -> RepositoryRecord | None:
        return decode_optional(self.kv.get(keys.repository(name)), RepositoryRecord)

    def _already_exists(self, name: RepositoryName) -> AlreadyExists:
        record = self._find_record(name)
        if record is not None and record.closed_ms:
            from refstore.operations import deleted_names

            return AlreadyExists(deleted_names.describe_hold(self.context(name, record), record))
        return AlreadyExists(f"repository already exists: {name!r}")


def open_lake_at(
    kv_url: str,
    objects_url: str,
    *,
    safety: Safety | None = None,
    explicit: Mapping[str, str] | None = None,
    signing_keys: Sequence[SigningKey] = (),
    clock: Clock | None = None,
    import_from: Sequence[str] = (),
    stores: NamedStores | None = None,
    must_exist: bool = False,
    read_purge_key: Callable[[], bytes | None] = lambda: None,
    read_only: bool = False,
    check_identity: bool = True,
) -> Lake:
    """Open a lake by the URLs of its stores; make it if the KV and the object store are new. Applications open it by
    `refstore.open`; unlike that, this looks for no settings. Raises WrongStore (the two belong to different lakes),
    InvalidSettings, DurationsDiffer, MissingExtra, StoreMisconfigured, KVUnavailable, ObjectsUnavailable.

    `safety`: durations that must be those that the lake's processes have agreed on; by default what they agreed on.
    `explicit`: the only ones of `safety` that must be, by name, and where each came from. `signing_keys`: the keys that
    sign the tokens of issued addresses; by default the lake keeps one in the KV. `stores`: how the stores are reached
    that namespaces name, such as {"archive": {"endpoint": "https://..."}}. `must_exist`: raise NotFound if the two have
    no lake. `read_only`: nothing is written, neither now nor later, and what would write raises LakeReadOnly.
    `check_identity`: False only for who makes the KV fit the object store. `import_from`: URLs of the folders below
    which foreign objects may be read. `read_purge_key`: returns the key of the purge when somebody purges.
    """
    clock = clock or SystemClock()
    if explicit is None:
        explicit = dict.fromkeys(SHARED if safety is not None else (), "")
    own = safety or Safety()
    lake = Lake(
        open_kv(kv_url, clock=clock, check=deadline.check, read_only=read_only),
        objects_url,
        clock=clock,
        safety=own,
        signing_keys=signing_keys,
        open_store=partial(open_objects, io_timeout_seconds=own.objects_io_seconds, read_only=read_only),
        stores=stores or {},
        import_from=import_from,
        read_purge_key=read_purge_key,
    )
    try:
        lake.agree(explicit=explicit, must_exist=must_exist, read_only=read_only, check_identity=check_identity)
    except BaseException:
        lake.close()
        raise
    return lake


def _not_found(name: RepositoryName, record: RepositoryRecord | None = None) -> RepositoryNotFound:
    """`record`: of a repository that was deleted and is not drained yet."""
    state = f"was deleted at {format_utc(record.closed_ms)}" if record is not None else "does not exist"
    return RepositoryNotFound(f"repository {name!r} {state}; list the repositories to see which do", unknown=name)
