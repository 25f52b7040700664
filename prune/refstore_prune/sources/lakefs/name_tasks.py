"""Tasks that read names on the engine's workers, from files of lakeFS's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO

from refstore.errors import Corrupt, ObjectNotFound
from refstore.objects import open_objects
from refstore_gc.untyped_arrow import pa, pc, pq
from refstore_prune.sources.base import BATCH_NAMES, NameBatch, NameTask
from refstore_prune.sources.lakefs.committed import range_key, read_metarange, read_range_addresses
from refstore_prune.sources.lakefs.namespace_place import LOCAL, NamespacePlace
from refstore_prune.sources.lakefs.sstable import Table, TableFile


@dataclass(frozen=True, slots=True)
class PlacedNames:
    """Reads the addresses of a task, and makes names of them that the store understands."""

    task: NameTask
    place: NamespacePlace

    def __call__(self) -> Iterator[NameBatch]:
        for addresses in self.task():
            yield place_names(addresses, self.place)


def place_names(addresses: NameBatch, place: NamespacePlace) -> NameBatch:
    """Return addresses with the store's own URL where lakeFS calls it otherwise."""
    known = place.known_as
    if known == place.store_url or not pc.any(pc.starts_with(addresses, known)).as_py():
        return addresses
    inside = pc.and_not(pc.starts_with(addresses, known), pc.starts_with(addresses, f"{LOCAL}/"))
    below = pc.binary_replace_slice(addresses, start=0, stop=len(known.encode()), replacement=place.store_url)
    return pc.if_else(inside, below, addresses)


@dataclass(frozen=True, slots=True)
class UncommittedTask:
    """Reads a file in which lakeFS wrote down what is uncommitted."""

    store_url: str
    key: str

    def __call__(self) -> Iterator[NameBatch]:
        """Raises Corrupt."""
        with closing(open_objects(self.store_url, read_only=True)) as store:
            try:
                file = pq.ParquetFile(BytesIO(store.read(self.key)))
                types = {field.name: field.type for field in file.schema_arrow}
                if types.get("physical_address") != pa.string() or types.get("creation_date") != pa.int64():
                    raise Corrupt(f"{self.key} has not the columns physical_address and creation_date; run again")
                for batch in file.iter_batches(BATCH_NAMES, columns=["physical_address"], use_threads=False):
                    names = batch.column(0)
                    if names.null_count or pc.any(pc.equal(names, "")).as_py():
                        raise Corrupt(f"{self.key} has a row without an address; run again")
                    yield names
            except (pa.ArrowException, OSError) as error:
                raise Corrupt(f"{self.key}, which lakeFS has written, is no whole Parquet file; run again") from error
            except ObjectNotFound as error:
                raise Corrupt(f"{self.key}, which lakeFS has written, is gone; run again") from error


@dataclass(frozen=True, slots=True)
class LeftOverTask:
    """Reads files of which nobody says whether they are ranges or metaranges."""

    store_url: str
    prefix: str
    ids: tuple[str, ...]

    def __call__(self) -> Iterator[NameBatch]:
        """Raises Corrupt, also for a metarange of which a range is not there."""
        with closing(open_objects(self.store_url, read_only=True)) as store:
            for id_ in self.ids:
                file = TableFile.from_store(store, range_key(self.prefix, id_))
                properties = Table(file).properties
                if b"entity" in properties:  # branches, tags or commits, which `lakectl refs-dump` has written
                    continue
                if properties.get(b"type") == b"metaranges":
                    refs = read_metarange(file)
                    heads = store.head_many([range_key(self.prefix, ref.id) for ref in refs])
                    for ref, head in zip(refs, heads, strict=True):
                        if head is None:
                            raise Corrupt(f"the range {ref.id} of the metarange {id_} is gone; put it back from a copy")
                elif properties.get(b"type") == b"ranges":
                    yield from read_range_addresses(file)
                else:
                    raise Corrupt(f"{file.name} is neither a range nor a metarange of lakeFS; move it elsewhere")
