"""A lake: one KV and one object store, and the repositories in them.

A repository's name stands for an id that is never used again, and its data lives in a namespace that no other repository may
have, contain or lie in: what one repository's reaper or offline job deletes can then never be another's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import structlog

from refstore import deadline, ids, keys, user_metadata
from refstore.branches import Branches
from refstore.clock import Clock, SystemClock
from refstore.commits import graph
from refstore.commits.trees import Caches, Trees
from refstore.context import Context
from refstore.errors import AlreadyExists, Conflict, Contention, ObjectNotFound, RepositoryNotFound, Unavailable
from refstore.flows import branching, retaining
from refstore.ids import Ids, RandomIds, RepositoryId, RepositoryName
from refstore.issuance import Issuer, SigningKey, keys_of
from refstore.kv import open_kv
from refstore.kv.base import ABSENT, KV, Key
from refstore.markers import REPOSITORY_DELETED
from refstore.namespaces import NAMESPACES, as_folder, check_new
from refstore.objects import child, open_objects
from refstore.objects.base import ObjectStore
from refstore.objects.foreign import ForeignStores
from refstore.records import ClearedRepository, Commit, RepositoryRecord, decode, encode, maybe
from refstore.redaction import redact_text, redact_url
from refstore.repository import Repository
from refstore.safety import Safety
from refstore.staging import Staging

NAMESPACE_OBJECT: Final = "_refstore/namespace"
"""Says, in the namespace itself, which repository owns it: two lakes with different KVs must not share one either."""

_ATTEMPTS: Final = 16

_log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class Lake:
    """Open with `refstore.open` or `Lake.open`; close it, or use it as a context manager."""

    kv: KV
    objects_url: str
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    safety: Safety = field(default_factory=Safety)
    signing_keys: Sequence[SigningKey] = ()
    open_store: Callable[[str], ObjectStore] = open_objects
    import_from: Sequence[str] = ()
    """URLs of foreign data (`api.import_from`): here they only say how their buckets are reached."""
    _foreign: ForeignStores | None = None
    _issuer: Issuer | None = None
    _keys: Sequence[SigningKey] = ()
    _stores: dict[str, ObjectStore] = field(default_factory=dict[str, ObjectStore])
    _caches: Caches = field(default_factory=Caches)
    """Of all repositories together: a service asks for one anew with each request, and would decode its ranges anew each time."""

    @classmethod
    def open(
        cls,
        kv_url: str,
        objects_url: str,
        *,
        safety: Safety | None = None,
        signing_keys: Sequence[SigningKey] = (),
        clock: Clock | None = None,
        import_from: Sequence[str] = (),
    ) -> Lake:
        """Raises InvalidSettings, MissingExtra, StoreMisconfigured."""
        clock, safety = clock or SystemClock(), safety or Safety()
        kv = open_kv(kv_url, clock=clock, check=deadline.check)
        open_store = partial(open_objects, io_timeout_seconds=safety.objects_io_seconds)
        return cls(kv, objects_url, clock=clock, safety=safety, signing_keys=signing_keys, open_store=open_store, import_from=import_from)

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        if self._foreign is not None:
            self._foreign.close()
        self.kv.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_repository(
        self,
        name: str,
        *,
        namespace: str | None = None,
        default_branch: str = "main",
        metadata: dict[str, str] | None = None,
        grace_seconds: int | None = None,
        given_namespace: str = "",
    ) -> Repository:
        """Make an empty repository. Raises AlreadyExists, Conflict (the namespace is taken), InvalidName.

        `given_namespace`: how a client of lakeFS's named the namespace, if otherwise than by its URL. The API shows it so.
        The name is written last: until then nobody sees the repository, and what fails gives the namespace back. A crash leaves a claimed
        namespace, and so does a KV that does not say whether the name was written.
        """
        checked = ids.repository_name(name)
        branch = ids.branch_name(default_branch)
        user_metadata.check(metadata or {}, f"repository {checked!r}")
        if self.kv.get(keys.repository(checked)) is not ABSENT:
            raise self._exists(checked)
        now = self.clock.now_ms()
        repo = ids.new_repository_id(self.ids, checked, now)
        url = namespace or child(self.objects_url, repo)
        grace = -1 if grace_seconds is None else grace_seconds
        record = RepositoryRecord(repo, url, branch, now, metadata or {}, grace, given_namespace=given_namespace)
        check_new(url, self.objects_url)
        with ExitStack() as undo:
            undo.callback(self._leave_kv, url, repo)
            self._claim_key(url, repo)
            undo.callback(self._leave_store, url, repo)
            self._claim_store(url, repo)
            ctx = self._context(checked, record)
            root = Commit((), "", "", (), now, "", "Repository created")
            head = graph.commit_id(root)
            self.kv.set(keys.commit(repo, head), encode(root))
            self.kv.set(keys.landed(repo, head), b"")
            token = Staging(self.kv, repo).new_token(branch, self.ids, self.clock)
            Branches(self.kv, repo, self.ids, self.clock).create(branch, head, token)
            take_back = undo.pop_all()  # whether the name is written is not certain while the KV has not said so
        try:
            landed = record if self.kv.set_if(keys.repository(checked), ABSENT, encode(record)) else self._landed(checked, repo)
        except Unavailable:
            landed = self._landed(checked, repo)
            if landed is None:
                raise  # the write may still arrive, and its repository would rest on the claim
        if landed is None:
            take_back.close()
            raise self._exists(checked)
        return Repository(ctx, landed)

    def repository(self, name: str) -> Repository:
        """Raises RepositoryNotFound."""
        checked = ids.repository_name(name)
        record = maybe(self.kv.get(keys.repository(checked)), RepositoryRecord)
        if record is None or record.closed_ms:
            raise RepositoryNotFound(f"repository {name!r} does not exist; list the repositories to see which do")
        return Repository(self._context(checked, record), record)

    def undrained(self, name: str) -> Context:
        """Of a repository that lives, or was deleted and is not drained yet. Raises RepositoryNotFound."""
        checked = ids.repository_name(name)
        record = maybe(self.kv.get(keys.repository(checked)), RepositoryRecord)
        if record is None:
            raise RepositoryNotFound(f"repository {name!r} does not exist; list the repositories to see which do")
        return self._context(checked, record)

    def repositories(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[RepositoryName, RepositoryRecord]]:
        """Those that live, in order of name."""
        for name, record in self.all_repositories(prefix=prefix, after=after):
            if not record.closed_ms:
                yield name, record

    def all_repositories(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[RepositoryName, RepositoryRecord]]:
        """Those that live, and those that were deleted and are not drained yet."""
        for name, value in self.kv.scan_all(keys.REPOSITORIES, prefix=prefix, after=after):
            yield ids.repository_name(name), decode(value, RepositoryRecord)

    def set_metadata(self, name: str, *, put: Mapping[str, str] | None = None, remove: Iterable[str] = ()) -> RepositoryRecord:
        """Change a repository's metadata. Raises RepositoryNotFound, Contention, Invalid (it would take too much)."""
        checked = ids.repository_name(name)
        key = keys.repository(checked)
        gone = set(remove)
        for _ in range(_ATTEMPTS):
            raw = self.kv.get(key)
            record = maybe(raw, RepositoryRecord)
            if record is None or record.closed_ms:
                raise RepositoryNotFound(f"repository {name!r} does not exist; list the repositories to see which do")
            metadata = {name: value for name, value in {**record.metadata, **(put or {})}.items() if name not in gone}
            if user_metadata.size_of(metadata) > user_metadata.size_of(record.metadata):  # else: less than an older version took
                user_metadata.check(metadata, f"repository {checked!r}")
            changed = msgspec.structs.replace(record, metadata=metadata)
            if metadata == record.metadata or self.kv.set_if(key, raw, encode(changed)):
                return changed
        raise Contention(f"others kept changing repository {name!r}; make the same call again")

    def delete_repository(self, name: str) -> None:
        """Delete a repository: what was never committed is reaped; what was committed is the offline job's to delete.

        The name is free again when the reaper has drained the repository. Raises RepositoryNotFound, Conflict (legal holds).
        """
        checked = ids.repository_name(name)
        key = keys.repository(checked)
        first: RepositoryId | None = None
        for _ in range(_ATTEMPTS):
            raw = self.kv.get(key)
            record = maybe(raw, RepositoryRecord)
            if record is None or record.closed_ms or (first is not None and record.id != first):
                if first is not None:
                    return  # our own write, or another's, got there
                raise RepositoryNotFound(f"repository {name!r} does not exist; list the repositories to see which do")
            first = record.id
            retaining.check_no_holds(self._context(checked, record))
            if self.kv.set_if(key, raw, encode(msgspec.structs.replace(record, closed_ms=max(1, self.clock.now_ms())))):
                branching.close_all(self._context(checked, record), REPOSITORY_DELETED)
                return
        raise Contention(f"others kept changing repository {name!r}; make the same call again")

    def context(self, name: RepositoryName, record: RepositoryRecord) -> Context:
        """For the reaper and the offline job, which also work on repositories that are deleted."""
        return self._context(name, record)

    def all_of(self, name: str) -> Iterator[tuple[Context, RepositoryRecord]]:
        """All repositories of the name whose namespace is not free: the one that has it now, then deleted ones, the newest first."""
        checked = ids.repository_name(name)
        record = maybe(self.kv.get(keys.repository(checked)), RepositoryRecord)
        if record is not None:
            yield self._context(checked, record), record
        drained = [decode(value, RepositoryRecord) for _, value in self.kv.scan_all(keys.CLOSED_REPOSITORIES, prefix=f"{checked}.")]
        for each in sorted(drained, key=lambda each: -each.created_ms):
            if record is None or each.id != record.id:
                yield self._context(checked, each), each

    def cleared(self, name: str) -> Iterator[tuple[RepositoryId, ClearedRepository]]:
        """What is known of deleted repositories of the name whose data is gone, or is being deleted."""
        for repo, value in self.kv.scan_all(keys.CLEARED_REPOSITORIES, prefix=f"{ids.repository_name(name)}."):
            yield ids.repository_id(repo), decode(value, ClearedRepository)

    def signing(self) -> Sequence[SigningKey]:
        """The keys that tokens are signed with: the first signs, all verify. Those that were configured, or one that the KV keeps."""
        if not self._keys:
            self._keys = keys_of(self.kv, self.signing_keys)
        return self._keys

    def _context(self, name: RepositoryName, record: RepositoryRecord) -> Context:
        objects = self._stores.get(record.namespace)
        if objects is None:
            objects = self._stores[record.namespace] = self.open_store(record.namespace)
        if self._issuer is None:
            self._issuer = Issuer(self.signing(), self.clock)
        shown = (record.given_namespace or objects.url).partition("?")[0].rstrip("/")
        grace = self.safety.grace_seconds if record.grace_seconds < 0 else float(record.grace_seconds)
        if self._foreign is None:
            self._foreign = ForeignStores(self.open_store, known=[*self.import_from, self.objects_url])
        trees = Trees(objects, self.ids, self.clock, caches=self._caches)
        return Context(
            record.id, name, self.kv, objects, trees, self._issuer, self.clock, self.ids, self.safety, self._foreign, grace, shown
        )

    def _claim_key(self, url: str, repo: RepositoryId) -> None:
        """Take the namespace for this repository alone, of those of this lake. Raises Conflict."""
        own = as_folder(url)
        claim = Key(NAMESPACES, own)
        if not self.kv.set_if(claim, ABSENT, repo.encode()) and self.kv.get(claim) != repo.encode():
            raise Conflict(f"namespace {own} belongs to a repository already; give each repository its own")
        for other, _ in self.kv.scan_all(NAMESPACES):
            if other != own and (other.startswith(own) or own.startswith(other)):
                raise Conflict(f"namespace {own} and {other}, which belongs to a repository, lie in each other; choose another")

    def _claim_store(self, url: str, repo: RepositoryId) -> None:
        """Likewise of those of other lakes, whose KV is not known here. Raises Conflict."""
        with closing(self.open_store(url)) as objects:
            try:
                if objects.conditional_put:
                    objects.put(NAMESPACE_OBJECT, repo.encode(), if_absent=True)
                else:
                    _put_where_none(objects, repo)
            except AlreadyExists:
                if objects.read(NAMESPACE_OBJECT) != repo.encode():  # else the reply was lost, and the driver asked again
                    raise Conflict(f"namespace {as_folder(url)} holds the data of another lake's repository; choose an empty one") from None

    def _leave_store(self, url: str, repo: RepositoryId) -> None:
        """Undo `_claim_store`, if the claim is this repository's. Done before `_leave_kv`: so long nobody else of this lake comes in."""
        with self._undoing(url, repo), closing(self.open_store(url)) as objects, suppress(ObjectNotFound):
            if objects.read(NAMESPACE_OBJECT) == repo.encode():
                objects.delete_many([NAMESPACE_OBJECT])

    def _leave_kv(self, url: str, repo: RepositoryId) -> None:
        """Undo what a creation wrote to the KV whose name will never be: nobody has seen any of it."""
        with self._undoing(url, repo):
            self.kv.set_if(Key(NAMESPACES, as_folder(url)), repo.encode(), ABSENT)
            for partition in (keys.branches(repo), keys.commits(repo), keys.landed_commits(repo), keys.tokens(repo)):
                self.kv.delete_range(partition, "", "\U0010ffff")

    @contextmanager
    def _undoing(self, url: str, repo: RepositoryId) -> Generator[None, None, None]:
        """Log what fails: what ended the creation is what its caller must hear of."""
        try:
            with deadline.lifted():
                yield
        except Exception as error:  # noqa: BLE001  # likewise
            _log.warning("namespace_not_given_back", repository=repo, namespace=redact_url(url), error=redact_text(repr(error)))

    def _landed(self, name: RepositoryName, repo: RepositoryId) -> RepositoryRecord | None:
        """The record of a creation whose name was written, though the write did not say so; None: it was not written so far.

        It may have been deleted and drained since. Looked for in the order in which it moves, so that it is not missed on its way.
        """
        with deadline.lifted():
            there = maybe(self.kv.get(keys.repository(name)), RepositoryRecord)
            if there is None or there.id != repo:
                there = maybe(self.kv.get(keys.closed_repository(repo)), RepositoryRecord)
            return there

    def _exists(self, name: RepositoryName) -> AlreadyExists:
        record = maybe(self.kv.get(keys.repository(name)), RepositoryRecord)
        if record is not None and record.closed_ms:
            return AlreadyExists(f"repository {name!r} was deleted and is still being drained; run the reaper, then try again")
        return AlreadyExists(f"repository already exists: {name!r}")


def _put_where_none(objects: ObjectStore, repo: RepositoryId) -> None:
    """For stores without a conditional put: the best that can be done there."""
    try:
        objects.head(NAMESPACE_OBJECT)
    except ObjectNotFound:
        objects.put(NAMESPACE_OBJECT, repo.encode())
        return
    raise AlreadyExists("taken")
