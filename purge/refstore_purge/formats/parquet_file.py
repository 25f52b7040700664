"""A Parquet file that is read for a purge: its footer, and pyarrow's views of it; and the footer of the new one."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, BinaryIO, Final

from refstore_purge.formats import key_values
from refstore_purge.formats.base import Ids, PurgeError, Task, is_alike
from refstore_purge.formats.parquet_chunks import Source, extent
from refstore_purge.formats.parquet_footer import Chunk, Column, Element, File, Group, Items, Pair, Struct, read_footer
from refstore_purge.formats.parquet_identifier import may_match, plain_leaf
from refstore_purge.formats.parquet_schema import REPEATED, Node, tree_of, view
from refstore_purge.formats.parquet_shapes import Kind
from refstore_purge.store_file import buffer_bytes_of
from refstore_purge.untyped_arrow import pa, pq

NUM_CATEGORIES: Final = b"num_categories"


class ParquetFile:
    """A file with its footer, and pyarrow's view of the identifier."""

    def __init__(self, source: BinaryIO, task: Task) -> None:
        """Raise PurgeError."""
        self.footer, end = read_footer(source)
        self.source = Source(source, end)
        self.root = tree_of(self.footer)
        if not self.root.children:
            raise PurgeError("the file has no columns; correct the data set's prefix")
        self.groups: Sequence[Struct] = self.footer[File.ROW_GROUPS]
        _check_groups(self.groups, list(self.root.leaves()), self.source)
        self._arrow = _arrow_fields(self.footer, self.root)
        names = [task.identifier[0], *(null[0] for null in task.set_null)]
        roots = [node for node in self.root.children if any(is_alike(node.name, name) for name in names)]
        self.typed: Any = self.open_view(roots, range(len(self.groups)), is_plain=False) if roots else None
        self._task = task
        self._leaf = plain_leaf(self.typed, task) if roots else None

    @property
    def schema(self) -> Any:
        """The schema of Arrow of the identifier, and of what is to be set to null."""
        return pa.schema([]) if self.typed is None else self.typed.schema_arrow

    @property
    def rows(self) -> int:
        return sum(group[Group.ROWS] for group in self.groups)

    def check_categories(self, tops: Sequence[Node]) -> None:
        """Raise PurgeError for a category of fastparquet, which reads the dictionary of one row group for all."""
        leaves = [leaf for top in tops for leaf in top.leaves()]
        for group in self.groups:
            for leaf in leaves:
                pairs = group[Group.COLUMNS][leaf.first_leaf][Chunk.METADATA].get(Column.KEY_VALUES, ())
                if any(pair[Pair.KEY] == NUM_CATEGORIES for pair in pairs):
                    raise PurgeError(
                        f"column {leaf.path[0]!r} is a category of pandas, and fastparquet reads one dictionary for "
                        "all row groups; write it as plain values, or purge it by other means"
                    )

    def may_have(self, number: int, ids: Ids) -> bool:
        """Return whether a row group may have one of the ids, as far as the statistics of its column tell."""
        if self._leaf is None or self._task.ignore_statistics:
            return True
        return may_match(self.typed.metadata.row_group(number).column(self._leaf), ids)

    def open_view(self, roots: Sequence[Node], groups: Sequence[int], *, is_plain: bool) -> Any:
        """Open some columns of some row groups, as `view` says. Raises PurgeError."""
        arrow = None if is_plain or not self._arrow else pa.schema([self._arrow[top.number] for top in roots])
        return pq.ParquetFile(
            self.source.file,
            metadata=view(self.footer, roots, groups, is_plain=is_plain, arrow=arrow),
            pre_buffer=False,
            buffer_size=buffer_bytes_of(self.source.file),
            page_checksum_verification=True,
        )


def _arrow_fields(footer: Struct, root: Node) -> dict[int, Any]:
    """Return the fields of the schema of Arrow that a file may have, by the numbers of its outermost columns."""
    pairs = {pair[Pair.KEY]: pair.get(Pair.VALUE, b"") for pair in footer.get(File.KEY_VALUES, ())}
    schema = key_values.schema_of(pairs.get(key_values.ARROW_SCHEMA, b""))
    if schema is None or len(schema) != len(root.children):
        return {}
    return {top.number: field for top, field in zip(root.children, schema, strict=True)}


def _check_groups(groups: Sequence[Struct], leaves: Sequence[Node], source: Source) -> None:
    """Raise PurgeError for row groups that contradict themselves: readers would take rows of them for others."""
    paths = [[name.encode("utf-8", "surrogateescape") for name in leaf.path] for leaf in leaves]
    places: list[tuple[int, int]] = []
    for number, group in enumerate(groups):
        rows, chunks = group[Group.ROWS], group[Group.COLUMNS]
        if len(chunks) != len(leaves) or rows < 0:
            raise _contradiction(number, f"has {len(chunks)} columns of {len(leaves)}, and {rows} rows")
        for leaf, path, chunk in zip(leaves, paths, chunks, strict=True):
            metadata, name = chunk[Chunk.METADATA], ".".join(leaf.path)
            values, is_repeated = metadata[Column.VALUES], REPEATED in leaf.levels
            if metadata[Column.TYPE] != leaf.element[Element.TYPE]:
                raise _contradiction(number, f"has another type of column {name!r} than the schema")
            if metadata[Column.PATH] != path and metadata[Column.PATH] in paths:
                raise _contradiction(number, f"has another column in the place of {name!r}")
            if values < rows or (values != rows and not is_repeated):
                raise _contradiction(number, f"has {rows} rows, and {values} values of column {name!r}")
            places.append(extent(source, chunk))
    places.sort()
    if any(start + size > after for (start, size), (after, _) in pairwise(places) if size):
        raise PurgeError("column chunks of the file overlap; it is damaged; see to it by other means")


def _contradiction(number: int, what: str) -> PurgeError:
    return PurgeError(f"row group {number} of the file {what}; it is damaged; see to it by other means")


def pairs_of(footer: Struct) -> Iterator[dict[bytes, bytes]]:
    """Yield the entries of key-value metadata, of the file and of its column chunks."""
    every = [footer.get(File.KEY_VALUES, ())]
    chunks = [chunk for group in footer[File.ROW_GROUPS] for chunk in group[Group.COLUMNS]]
    every += [chunk[Chunk.METADATA].get(Column.KEY_VALUES, ()) for chunk in chunks]
    for pairs in every:
        yield from ({pair[Pair.KEY]: pair.get(Pair.VALUE, b"")} for pair in pairs)


def footer_with(old: Struct, groups: Sequence[Struct], ids: Ids, *, rows_changed: bool) -> Struct:
    """Return the footer of a file that is written again: as it was, with its row groups, and without ids in its
    metadata. Raises PurgeError.
    """
    footer = _without_ids(old, File.KEY_VALUES, ids, rows_changed=rows_changed)
    for group in groups:
        for chunk in group[Group.COLUMNS]:
            metadata = _without_ids(chunk[Chunk.METADATA], Column.KEY_VALUES, ids, rows_changed=rows_changed)
            chunk.change(Chunk.METADATA, metadata)
    footer.change(File.ROWS, sum(group[Group.ROWS] for group in groups))
    footer.change(File.ROW_GROUPS, Items(Kind.STRUCT, groups))
    return footer


def _without_ids(struct: Struct, number: int, ids: Ids, *, rows_changed: bool) -> Struct:
    """Return a struct whose key-value metadata have no ids, in their order."""
    kept = Items(Kind.STRUCT)
    for pair in struct.get(number, ()):
        key, value = pair[Pair.KEY], pair.get(Pair.VALUE, b"")
        left = key_values.without_ids({key: value}, ids, rows_changed=rows_changed)
        if key in left:
            kept.append(pair.without())
            if left[key] != value:
                kept[-1].change(Pair.VALUE, left[key])
    found = struct.without()
    if number in struct:
        found.change(number, kept)
    return found


@contextmanager
def readable() -> Generator[None, None, None]:
    """Raise PurgeError where pyarrow cannot read a file."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        what = "it is encrypted" if "crypt" in str(error).lower() else "it is damaged, or no Parquet"
        raise PurgeError(f"the file cannot be read: {what}; see to it by other means") from error
