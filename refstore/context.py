"""One repository with all that an operation needs of it, in one frozen object that is passed down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refstore.audit import AuditLog
from refstore.core.clock import Clock
from refstore.core.ids import Ids, RepositoryId, RepositoryName
from refstore.core.safety import Durations, Safety
from refstore.foreign_reads import ForeignReads
from refstore.kv.base import KV
from refstore.objects.base import ObjectStore
from refstore.records import keys
from refstore.versioning.address_state import DeletionDelays
from refstore.versioning.branches import Branches
from refstore.versioning.issuance import AddressTokenIssuer
from refstore.versioning.locations import Locations
from refstore.versioning.manifest import Manifest
from refstore.versioning.markers import Markers
from refstore.versioning.multipart_uploads import MultipartUploads
from refstore.versioning.references import References
from refstore.versioning.staging import Staging

if TYPE_CHECKING:
    from refstore.versioning.commits.trees import Trees


@dataclass(frozen=True, slots=True)
class Context:
    repo: RepositoryId
    name: RepositoryName
    kv: KV
    objects: ObjectStore
    """The store of the repository's namespace."""
    make_trees: Callable[[], Trees]
    """Imported when it is called: who only stages and reads what is staged needs no trees."""
    issuer: AddressTokenIssuer
    clock: Clock
    ids: Ids
    durations: Durations
    foreign: ForeignReads
    """Reads foreign objects, as far as the settings allow it."""
    grace_seconds: float
    """How long an address of this repository stays after it lost its last reference."""
    audit: AuditLog
    """The lake's audit log."""
    lake_objects: Callable[[], ObjectStore]
    """Return the lake's own object store, beside the repositories."""
    read_purge_key: Callable[[], bytes | None] = field(repr=False)
    """Return the key of the purge; None: it keeps no index and no ledger of ids. Raises InvalidSettings."""
    shown_namespace: str = ""
    """The prefix of physical addresses in API answers: the namespace's URL, or a lakeFS client's name for it."""

    @property
    def safety(self) -> Safety:
        """What this process's operations keep to."""
        return self.durations.safety

    @property
    def waits(self) -> Safety:
        """How long to wait for the operations of other processes."""
        return self.durations.waits

    @property
    def deletion_delays(self) -> DeletionDelays:
        """How long an object of this repository stays that nothing names."""
        return DeletionDelays(self.grace_seconds, self.waits.clock_skew_seconds)

    @property
    def trees(self) -> Trees:
        return self.make_trees()

    @property
    def branches(self) -> Branches:
        return Branches(self.kv, self.repo, self.ids, self.clock)

    @property
    def staging(self) -> Staging:
        return Staging(self.kv, self.repo)

    @property
    def references(self) -> References:
        return References(self.kv, self.repo, self.clock, lambda: self.deletion_delays)

    @property
    def uploads(self) -> MultipartUploads:
        return MultipartUploads(self.kv, self.repo)

    @property
    def locations(self) -> Locations:
        return Locations(self.kv, self.repo, self.clock)

    @property
    def markers(self) -> Markers:
        return Markers(self.kv, self.repo, self.clock, self.manifest)

    @property
    def manifest(self) -> Manifest:
        """What must survive the KV."""
        return Manifest(self.objects, self.kv, keys.unwritten_manifest(self.repo))

    @property
    def lake_manifest(self) -> Manifest:
        """The same of the lake: its repositories."""
        return Manifest(self.lake_objects(), self.kv, keys.UNWRITTEN_LAKE_MANIFEST)
