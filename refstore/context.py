"""What every flow needs of one repository, in one frozen object that is passed down."""

from __future__ import annotations

from dataclasses import dataclass

from refstore.clock import Clock
from refstore.commits.trees import Trees
from refstore.ids import Ids, RepositoryId, RepositoryName
from refstore.issuance import Issuer
from refstore.kv.base import KV
from refstore.objects.base import ObjectStore
from refstore.objects.foreign import ForeignStores
from refstore.safety import Safety


@dataclass(frozen=True, slots=True)
class Context:
    repo: RepositoryId
    name: RepositoryName
    kv: KV
    objects: ObjectStore
    """The repository's namespace."""
    trees: Trees
    issuer: Issuer
    clock: Clock
    ids: Ids
    safety: Safety
    foreign: ForeignStores
    """For what is named and belongs to others."""
    grace_seconds: float
    """How long an address stays after its last reference went, in this repository."""
    shown_namespace: str = ""
    """What physical addresses begin with where the API shows them: the namespace's URL, or what a client of lakeFS's called it."""
