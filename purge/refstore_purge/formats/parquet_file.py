"""A Parquet file that is read for a purge: its footer, and pyarrow's views of it; and the footer of the new one."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, BinaryIO, Final

from refstore.objects.stored_file import StoredFile
from refstore_purge.file_allowance import FileAllowance, raise_if_memory
from refstore_purge.formats import key_values
from refstore_purge.formats.base import FormatTask, IdMatcher, find_column_type, is_alike, name_of
from refstore_purge.formats.believed_statistics import parquet_bounds, rule_out
from refstore_purge.formats.nested_columns import check_schema
from refstore_purge.formats.parquet_chunks import ChunkSource, check_codec, chunk_extent
from refstore_purge.formats.parquet_footer import (
    ColumnChunkField,
    ColumnMetadataField,
    FileField,
    KeyValueField,
    RowGroupField,
    SchemaElementField,
    ThriftList,
    ThriftStruct,
    ThriftType,
    read_footer,
)
from refstore_purge.formats.parquet_schema import REPEATED, SchemaNode, make_view, read_schema_tree
from refstore_purge.purge_error import OtherMeansError, PurgeError
from refstore_purge.untyped_pandas import pa, pq

NUM_CATEGORIES: Final = b"num_categories"
BUFFER_BYTES: Final = 1024 * 1024
"""How much of a column is read at once: memory that is used again costs less than fresh memory."""
REMOTE_BUFFER_BYTES: Final = 8 * 1024 * 1024
"""The same of a store over a network, where a request costs as much as reading megabytes."""


class ParquetFile:
    """A file with its footer, and pyarrow's view of the identifier."""

    def __init__(self, source: BinaryIO, task: FormatTask, ids: IdMatcher) -> None:
        """Raise PurgeError also where no row would tell."""
        self.footer, end = read_footer(source)
        self.source = ChunkSource(source, end)
        self.root = read_schema_tree(self.footer)
        if not self.root.children:
            raise PurgeError("the file has no columns; correct the data set's prefix")
        self.groups: Sequence[ThriftStruct] = self.footer[FileField.ROW_GROUPS]
        _check_groups(self.groups, list(self.root.leaves()), self.source)
        self._arrow = _arrow_fields(self.footer, self.root)
        names = [task.identifier[0], *(null[0] for null in task.set_null)]
        roots = [node for node in self.root.children if any(is_alike(node.name, name) for name in names)]
        self.typed: Any = self.open_view(roots, range(len(self.groups)), is_plain=False) if roots else None
        _check_codecs(self.groups, roots)
        self._task, self._ids = task, ids
        check_schema(self.schema, task, ids)
        _check_fixed_lists(self.schema, task)
        self.entries_with_ids = key_values.count_entries_with_ids(pairs_of(self.footer), ids)

    @property
    def schema(self) -> Any:
        """The schema of Arrow of the identifier, and of what is to be set to null."""
        return pa.schema([]) if self.typed is None else self.typed.schema_arrow

    @property
    def rows(self) -> int:
        return sum(group[RowGroupField.ROWS] for group in self.groups)

    def check_categories(self, tops: Sequence[SchemaNode]) -> None:
        """Raise PurgeError for a category of fastparquet, which reads the dictionary of one row group for all."""
        leaves = [leaf for top in tops for leaf in top.leaves()]
        for group in self.groups:
            for leaf in leaves:
                pairs = group[RowGroupField.COLUMNS][leaf.first_leaf][ColumnChunkField.METADATA].get(
                    ColumnMetadataField.KEY_VALUES, ()
                )
                if any(pair[KeyValueField.KEY] == NUM_CATEGORIES for pair in pairs):
                    raise PurgeError(
                        f"column {leaf.path[0]!r} is a category of pandas, and fastparquet reads one dictionary for "
                        "all row groups; write it as plain values, or see to it by other means"
                    )

    def is_ruled_out(self) -> bool:
        """Return whether statistics that are believed tell that the file has none of the ids."""
        leaf = None if self._task.ignores_statistics else find_plain_leaf(self.root, self._task)
        if leaf is None:
            return False
        type_ = find_column_type(self.schema, self._task.identifier, self._task.map_part)
        return rule_out(parquet_bounds(self.footer, leaf, type_), self._ids)

    def open_view(self, roots: Sequence[SchemaNode], groups: Sequence[int], *, is_plain: bool) -> Any:
        """Open some columns of some row groups, as `make_view` says. Raises PurgeError."""
        arrow = None if is_plain or not self._arrow else pa.schema([self._arrow[top.number] for top in roots])
        is_remote = isinstance(self.source.file, StoredFile) and self.source.file.is_remote
        return pq.ParquetFile(
            self.source.file,
            metadata=make_view(self.footer, roots, groups, is_plain=is_plain, arrow=arrow),
            pre_buffer=False,
            buffer_size=REMOTE_BUFFER_BYTES if is_remote else BUFFER_BYTES,
            page_checksum_verification=True,
        )


def _arrow_fields(footer: ThriftStruct, root: SchemaNode) -> dict[int, Any]:
    """Return the fields of the schema of Arrow that a file may have, by the numbers of its outermost columns."""
    pairs = {
        pair[KeyValueField.KEY]: pair.get(KeyValueField.VALUE, b"") for pair in footer.get(FileField.KEY_VALUES, ())
    }
    schema = key_values.decode_arrow_schema(pairs.get(key_values.ARROW_SCHEMA, b""))
    if schema is None or len(schema) != len(root.children):
        return {}
    return {top.number: field for top, field in zip(root.children, schema, strict=True)}


def _check_groups(groups: Sequence[ThriftStruct], leaves: Sequence[SchemaNode], source: ChunkSource) -> None:
    """Raise PurgeError for row groups that contradict themselves: readers would take rows of them for others. So it
    does for more rows than a file of this size may have.
    """
    paths = [[name.encode("utf-8", "surrogateescape") for name in leaf.path] for leaf in leaves]
    allowance = FileAllowance(source.file)
    places: list[tuple[int, int]] = []
    for number, group in enumerate(groups):
        rows, chunks = group[RowGroupField.ROWS], group[RowGroupField.COLUMNS]
        if len(chunks) != len(leaves) or rows < 0:
            raise _contradiction_error(number, f"has {len(chunks)} columns of {len(leaves)}, and {rows} rows")
        allowance.add_rows(rows)
        for leaf, path, chunk in zip(leaves, paths, chunks, strict=True):
            metadata, name = chunk[ColumnChunkField.METADATA], ".".join(leaf.path)
            values, is_repeated = metadata[ColumnMetadataField.VALUES], REPEATED in leaf.levels
            if metadata[ColumnMetadataField.TYPE] != leaf.element[SchemaElementField.TYPE]:
                raise _contradiction_error(number, f"has another type of column {name!r} than the schema")
            if metadata[ColumnMetadataField.PATH] != path and metadata[ColumnMetadataField.PATH] in paths:
                raise _contradiction_error(number, f"has another column in the place of {name!r}")
            if values < rows or (values != rows and not is_repeated):
                raise _contradiction_error(number, f"has {rows} rows, and {values} values of column {name!r}")
            allowance.add_values(values)
            places.append(chunk_extent(source, chunk))
    places.sort()
    if any(start + size > after for (start, size), (after, _) in pairwise(places) if size):
        raise OtherMeansError("column chunks of the file overlap; it is damaged")


def _check_codecs(groups: Sequence[ThriftStruct], roots: Sequence[SchemaNode]) -> None:
    """Raise PurgeError for columns that are compressed as pyarrow does not know."""
    for group in groups:
        for leaf in (leaf for root in roots for leaf in root.leaves()):
            check_codec(leaf, group[RowGroupField.COLUMNS][leaf.first_leaf][ColumnChunkField.METADATA])


def _contradiction_error(number: int, what: str) -> PurgeError:
    return OtherMeansError(f"row group {number} of the file {what}; it is damaged")


def pairs_of(footer: ThriftStruct) -> Iterator[dict[bytes, bytes]]:
    """Yield the entries of key-value metadata, of the file and of its column chunks."""
    every = [footer.get(FileField.KEY_VALUES, ())]
    chunks = [chunk for group in footer[FileField.ROW_GROUPS] for chunk in group[RowGroupField.COLUMNS]]
    every += [chunk[ColumnChunkField.METADATA].get(ColumnMetadataField.KEY_VALUES, ()) for chunk in chunks]
    for pairs in every:
        yield from ({pair[KeyValueField.KEY]: pair.get(KeyValueField.VALUE, b"")} for pair in pairs)


def make_footer(
    old: ThriftStruct, groups: Sequence[ThriftStruct], ids: IdMatcher, *, rows_changed: bool
) -> ThriftStruct:
    """Return the footer of a file that is written again: as it was, with its row groups, and without ids in its
    metadata. Raises PurgeError.
    """
    footer = _drop_ids(old, FileField.KEY_VALUES, ids, rows_changed=rows_changed)
    for group in groups:
        for chunk in group[RowGroupField.COLUMNS]:
            metadata = _drop_ids(
                chunk[ColumnChunkField.METADATA], ColumnMetadataField.KEY_VALUES, ids, rows_changed=rows_changed
            )
            chunk.change(ColumnChunkField.METADATA, metadata)
    footer.change(FileField.ROWS, sum(group[RowGroupField.ROWS] for group in groups))
    footer.change(FileField.ROW_GROUPS, ThriftList(ThriftType.STRUCT, groups))
    return footer


def _drop_ids(struct: ThriftStruct, number: int, ids: IdMatcher, *, rows_changed: bool) -> ThriftStruct:
    """Return a struct whose key-value metadata have no ids, in their order."""
    kept = ThriftList(ThriftType.STRUCT)
    for pair in struct.get(number, ()):
        key, value = pair[KeyValueField.KEY], pair.get(KeyValueField.VALUE, b"")
        left = key_values.drop_ids({key: value}, ids, rows_changed=rows_changed)
        if key in left:
            kept.append(pair.copy_without())
            if left[key] != value:
                kept[-1].change(KeyValueField.VALUE, left[key])
    found = struct.copy_without()
    if number in struct:
        found.change(number, kept)
    return found


@contextmanager
def translate_read_errors() -> Generator[None, None, None]:
    """Raise PurgeError where pyarrow cannot read a file."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise_if_memory(error)
        what = "it is encrypted" if "crypt" in str(error).lower() else "it is damaged, or no Parquet"
        raise OtherMeansError(f"the file cannot be read: {what}") from error


def find_plain_leaf(root: SchemaNode, task: FormatTask) -> SchemaNode | None:
    """Return the column of an identifier that lies in no list or map, so that its statistics are those of rows."""
    leaves = () if task.matches_every_row else root.leaves()
    found = [leaf for leaf in leaves if leaf.path == task.identifier and REPEATED not in leaf.levels]
    return found[0] if len(found) == 1 else None


def leaves_of(file: Any, task: FormatTask) -> Sequence[str]:
    """Return the columns to read: the identifier's leaf, under the names that lists and maps have in the file, and what
    is set to null.
    """
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    if _has_dots(file):
        return paths
    mine = [path for path in paths if path.split(".")[0] == task.identifier[0]]
    chosen = [path for path in mine if is_subsequence(task.identifier, path.split("."))] or mine
    if not task.matches_every_row and _has_map(file.schema_arrow.field(task.identifier[0]).type):
        chosen = mine  # without its keys a map would be read as a list
    return [*chosen, *(path for path in paths for null in task.set_null if path.split(".")[: len(null)] == list(null))]


def _has_dots(file: Any) -> bool:
    """Return whether a name has a dot, so that a path does not say which column it means."""

    def has(fields: Any) -> bool:
        return any("." in field.name or has(_fields_of(field.type)) for field in fields)

    return has(file.schema_arrow)


def _fields_of(type_: Any) -> list[Any]:
    return [type_.field(number) for number in range(type_.num_fields)]


def _check_fixed_lists(schema: Any, task: FormatTask) -> None:
    """Raise PurgeError for a struct to be set to null that has a required list of a fixed size: pyarrow would not read
    the file any more.
    """
    for path in task.set_null:
        type_ = pa.struct(list(schema))
        for name in path:
            type_ = type_.field(name).type
        if _has_required_list(type_):
            raise PurgeError(
                f"column {name_of(path)!r} has a required list of a fixed size, which pyarrow cannot read where "
                f"{name_of(path)!r} is null; set what is in it to null, or delete the rows instead"
            )


def _has_required_list(type_: Any) -> bool:
    """Return whether a struct has one, or a required struct in it."""
    if not pa.types.is_struct(type_):
        return False
    return any(
        (pa.types.is_fixed_size_list(field.type) and not field.nullable) or _has_required_list(field.type)
        for field in type_
    )


def _has_map(type_: Any) -> bool:
    return pa.types.is_map(type_) or any(_has_map(field.type) for field in _fields_of(type_))


def is_subsequence(wanted: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path goes through the wanted names, in their order."""
    rest = iter(path)
    return all(step in rest for step in wanted)
