"""Parquet: find ids by statistics and the identifier's column, and rewrite the row groups that have some.

What does not change is copied byte for byte: the footer but for entries of its metadata that have an id, row groups
without a match, and columns that stay beside those that are set to null. pyarrow writes the rest as it is stored
(`parquet_schema.py`), each column of each row group with the codec, the encoding and the indexes that it had
(`parquet_chunks.py`). What pyarrow would not keep is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from refstore_purge.formats import key_values
from refstore_purge.formats.base import (
    Found,
    Ids,
    PurgeError,
    Rewritten,
    See,
    Seeing,
    Task,
    is_alike,
    name_of,
)
from refstore_purge.formats.nested import any_set, check_schema, rows_that_match, set_null
from refstore_purge.formats.parquet_chunks import (
    Assembly,
    Source,
    Stored,
    as_before,
    check_like,
    extent,
    options,
    stored,
)
from refstore_purge.formats.parquet_footer import (
    Chunk,
    Column,
    File,
    Group,
    Items,
    Kind,
    Struct,
    read_footer,
    write_footer,
)
from refstore_purge.formats.parquet_schema import Node, tree_of, view
from refstore_purge.store_file import buffer_bytes_of
from refstore_purge.untyped_arrow import pa, pq

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_ROWS: Final = 131_072
NUM_CATEGORIES: Final = b"num_categories"
_DICTIONARIES_OF_VALUES: Final = re.compile(rb"parquet-mr |DuckDB |parquet-rs |impala ")
"""Writers whose dictionaries have the values of their rows only."""
_WRONG_SIZES: Final = re.compile(rb"parquet-mr version 1\.([01]\D|2\.[0-8]\D|2\.[0-8]$)")
"""Writers whose chunks are longer than they say (PARQUET-816): nothing of theirs is copied as it is."""


class _File:
    """A file with its footer, and pyarrow's view of the identifier."""

    def __init__(self, source: BinaryIO, task: Task) -> None:
        """Raise PurgeError."""
        self.footer, end = read_footer(source)
        self.source = Source(source, end)
        self.root = tree_of(self.footer)
        if not self.root.children:
            raise PurgeError("the file has no columns; correct the data set's prefix")
        self.groups: Sequence[Struct] = self.footer[File.ROW_GROUPS]
        pairs = {pair[1]: pair.get(2, b"") for pair in self.footer.get(File.KEY_VALUES, ())}
        schema = key_values.schema_of(pairs.get(key_values.ARROW_SCHEMA, b""))
        self._arrow = schema if schema is not None and len(schema) == len(self.root.children) else None
        names = [task.identifier[0], *(null[0] for null in task.set_null)]
        roots = [node for node in self.root.children if any(is_alike(node.name, name) for name in names)]
        self.typed: Any = self.opened(roots, range(len(self.groups)), is_plain=False) if roots else None

    @property
    def schema(self) -> Any:
        """The schema of Arrow of the identifier, and of what is to be set to null."""
        return pa.schema([]) if self.typed is None else self.typed.schema_arrow

    @property
    def rows(self) -> int:
        return sum(group[Group.ROWS] for group in self.groups)

    def with_spare_values(self) -> set[str]:
        """Return the outermost columns whose dictionaries may have values that no row of their row group has: then
        what a row had that goes may stand in every row group. Arrow writes categories so, and says which columns they
        are; of a writer that nobody knows any dictionary may be such a one.
        """
        if _DICTIONARIES_OF_VALUES.match(self.footer.get(File.CREATED_BY, b"")):
            return set()
        if self._arrow is not None:
            return {field.name for field in self._arrow if has_dictionary(field.type)}
        found = set[str]()
        for group in self.groups:
            for leaf, chunk in zip(self.root.leaves(), group[Group.COLUMNS], strict=True):
                if chunk[Chunk.METADATA].get(Column.DICTIONARY_PAGE, 0) > 0:
                    found.add(leaf.path[0])
        return found

    def check_categories(self, tops: Sequence[Node]) -> None:
        """Raise PurgeError for a category of fastparquet, which reads the dictionary of one row group for all."""
        for group in self.groups:
            for leaf, chunk in zip(self.root.leaves(), group[Group.COLUMNS], strict=True):
                pairs = chunk[Chunk.METADATA].get(Column.KEY_VALUES, ())
                if any(pair[1] == NUM_CATEGORIES for pair in pairs) and any(top.name == leaf.path[0] for top in tops):
                    raise PurgeError(
                        f"column {leaf.path[0]!r} is a category of pandas, and fastparquet reads one dictionary for "
                        "all row groups; write it as plain values, or purge it by other means"
                    )

    def opened(self, roots: Sequence[Node], groups: Sequence[int], *, is_plain: bool) -> Any:
        return pq.ParquetFile(
            self.source.file,
            metadata=view(self.footer, roots, groups, is_plain=is_plain, arrow=None if is_plain else self._arrow),
            pre_buffer=False,
            buffer_size=buffer_bytes_of(self.source.file),
            page_checksum_verification=True,
        )


def find(source: BinaryIO, task: Task, ids: Ids, see: See | None = None) -> Found:
    """Look for the ids. Raises PurgeError."""
    with readable():
        file = _File(source, task)
        check_schema(file.schema, task, ids)
        if task.every_row and not task.set_null:
            entries = key_values.entries_with_ids(pairs_of(file.footer), ids)
            return Found(file.rows, file.rows, "partition", entries)
        leaf = _plain_leaf(file.typed, task)
        groups = [number for number in range(len(file.groups)) if _may_have(file.typed, number, leaf, task, ids)]
        if groups and see is not None:
            groups = list(range(len(file.groups)))
            ids = Seeing(ids, see)
        matched = 0
        if groups:
            columns = _leaves(file.typed, task)
            for batch in file.typed.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=columns):
                matched += int(np.count_nonzero(rows_that_match(batch, task, ids)))
        by = "partition" if task.every_row else "column" if groups else "statistics"
        return Found(file.rows, matched, by, key_values.entries_with_ids(pairs_of(file.footer), ids))


def rewrite(source: BinaryIO, target: BinaryIO, task: Task, ids: Ids) -> Rewritten:
    """Write the file without the rows that match, or with nulls in them. Raises PurgeError.

    Column chunks in which nothing changes are copied byte for byte; pyarrow writes the others, and the footer stays as
    it was but for what these need.
    """
    with readable():
        file = _File(source, task)
        check_schema(file.schema, task, ids)
        assembly = Assembly(target)
        groups: list[Struct] = []
        tops = _tops(file.root, task)
        every = [_rows_of(file, number, tops, task, ids) for number in range(len(file.groups))]
        matched = sum(int(np.count_nonzero(rows)) for rows in every)
        spare = file.with_spare_values() if matched else set[str]()
        if matched:
            file.check_categories(tops)
        for number, (group, rows) in enumerate(zip(file.groups, every, strict=True)):
            found = int(np.count_nonzero(rows))
            left = len(rows) - (0 if task.set_null else found)
            if left or not len(rows):
                changed = [top for top in tops if found or top.name in spare]
                chunks = _chunks(file, number, changed, task, rows)
                groups.append(assembly.add_group(_sorted_as_before(group, file.root, task), left, chunks))
        assembly.finish()
        footer = footer_with(file.footer, groups, ids, rows_changed=matched > 0)
        write_footer(target, footer)
        _check_written(footer, target)
        return Rewritten(file.rows, matched, key_values.entries_with_ids(pairs_of(file.footer), ids))


def pairs_of(footer: Struct) -> Iterator[dict[bytes, bytes]]:
    """Yield the entries of key-value metadata, of the file and of its column chunks."""
    every = [footer.get(File.KEY_VALUES, ())]
    chunks = [chunk for group in footer[File.ROW_GROUPS] for chunk in group[Group.COLUMNS]]
    every += [chunk[Chunk.METADATA].get(Column.KEY_VALUES, ()) for chunk in chunks]
    for pairs in every:
        yield from ({pair[1]: pair.get(2, b"")} for pair in pairs)


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


def _tops(root: Node, task: Task) -> Sequence[Node]:
    """Return the outermost columns of which something changes."""
    if not task.set_null:
        return root.children
    names = {null[0] for null in task.set_null}
    return [node for node in root.children if node.name in names]


def _rows_of(file: _File, number: int, tops: Sequence[Node], task: Task, ids: Ids) -> NDArray[np.bool_]:
    """Return for each row of a row group whether it matches."""
    if task.every_row:
        rows = np.ones(file.groups[number][Group.ROWS], dtype=np.bool_)
    else:
        rows = np.zeros(file.groups[number][Group.ROWS], dtype=np.bool_)
        if _may_have(file.typed, number, _plain_leaf(file.typed, task), task, ids):
            table = file.typed.read_row_group(number, columns=_leaves(file.typed, replace(task, set_null=())))
            found = [rows_that_match(batch, replace(task, set_null=()), ids) for batch in table.to_batches()]
            rows = np.concatenate([rows[:0], *found])
    if task.set_null and rows.any():
        plain = file.opened(tops, [number], is_plain=True)
        paths = _plain_paths(file.root, task)
        table = pa.table([_read(plain, top).column(0) for top in tops], schema=plain.schema_arrow)
        sets = [any_set(batch, paths) for batch in table.to_batches()]
        rows = rows & np.concatenate([rows[:0], *sets])
    return rows


def _plain_paths(root: Node, task: Task) -> list[list[str]]:
    """Return the names that the columns to set to null have in a plain view."""
    paths: list[list[str]] = []
    for null in task.set_null:
        node = root
        paths.append([])
        for name in null:
            node = node.child(name)
            paths[-1].append(node.plain_name)
    return paths


def _chunks(
    file: _File, number: int, tops: Sequence[Node], task: Task, rows: NDArray[np.bool_]
) -> list[tuple[Source, Struct]]:
    """Return the column chunks of a row group as they are to be: of `tops` without the rows, or with nulls in them;
    all others as they are.
    """
    group = file.groups[number]
    if not tops and _WRONG_SIZES.match(file.footer.get(File.CREATED_BY, b"")):
        tops, task = file.root.children, replace(task, set_null=())
    chunks = [(file.source, chunk) for chunk in group[Group.COLUMNS]]
    if not tops:
        return chunks
    plain = file.opened(tops, [number], is_plain=True)
    paths = _plain_paths(file.root, task)
    keep = pa.array(~rows) if rows.any() and not task.set_null else None
    leaves: list[Node] = []
    before: list[Stored] = []
    columns: list[Any] = []
    for top in tops:  # one after another, so that no other is in memory as it was and as it will be
        leaves += top.leaves()
        before += [stored(file.source, group[Group.COLUMNS][leaf.first_leaf]) for leaf in top.leaves()]
        columns.append(_changed(_read(plain, top), paths, rows, keep).column(0))
    table = pa.table(columns, schema=plain.schema_arrow)
    body = _written(table, options(leaves, _paths_written(table.schema), before, len(rows)))
    del columns, table
    footer, end = read_footer(body)
    made = Source(body, end)
    (new,) = footer[File.ROW_GROUPS]
    for leaf, was, became, chunk in zip(leaves, before, tree_of(footer).leaves(), new[Group.COLUMNS], strict=True):
        old = group[Group.COLUMNS][leaf.first_leaf]
        changed = as_before(chunk, leaf, was, old)
        check_like(leaf, became, was, stored(made, changed))
        chunks[leaf.first_leaf] = made, changed
    return chunks


def _read(plain: Any, top: Node) -> Any:
    """Return a column of the one row group of a plain view. Raises PurgeError."""
    try:
        return plain.read_row_group(0, columns=[top.plain_name])
    except pa.ArrowException as error:
        raise PurgeError(
            f"column {top.name!r} cannot be read: it is damaged, or stored as pyarrow does not know; purge it "
            "by other means"
        ) from error


def _changed(column: Any, paths: Sequence[Sequence[str]], rows: NDArray[np.bool_], keep: Any) -> Any:
    """Return a plain column without the rows that go, or with nulls at the paths that lie in it."""
    if keep is not None:
        return column.filter(keep)
    mine = [path for path in paths if path[0] == column.schema.names[0]]
    batches: list[Any] = []
    at = 0
    for batch in column.to_batches():
        batches.append(set_null(batch, mine, rows[at : at + len(batch)]))
        at += len(batch)
    return pa.Table.from_batches(batches, column.schema)


def _written(table: Any, how: Mapping[str, Any]) -> BinaryIO:
    """Return a file with one row group."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **how) as writer:
        writer.write_table(table, row_group_size=max(1, len(table)))
    return pa.BufferReader(sink.getvalue())


def _paths_written(schema: Any) -> list[str]:
    """Return what pyarrow's writer calls the columns of a schema."""
    empty = pq.ParquetFile(_written(schema.empty_table(), {"store_schema": False})).schema
    return [empty.column(number).path for number in range(len(empty))]


def _sorted_as_before(group: Struct, root: Node, task: Task) -> Struct:
    """Return a row group that does not say to be sorted by what is set to null."""
    nulled = {
        leaf.first_leaf
        for leaf in root.leaves()
        if any(leaf.path[: len(null)] == tuple(null) for null in task.set_null)
    }
    return group.without(Group.SORTING) if any(each[1] in nulled for each in group.get(Group.SORTING, ())) else group


def _without_ids(struct: Struct, number: int, ids: Ids, *, rows_changed: bool) -> Struct:
    """Return a struct whose key-value metadata have no ids, in their order."""
    kept = Items(Kind.STRUCT)
    for pair in struct.get(number, ()):
        key, value = pair[1], pair.get(2, b"")
        left = key_values.without_ids({key: value}, ids, rows_changed=rows_changed)
        if key in left:
            kept.append(pair.without())
            if left[key] != value:
                kept[-1].change(2, left[key])
    found = struct.without()
    if number in struct:
        found.change(number, kept)
    return found


def _check_written(footer: Struct, target: BinaryIO) -> None:
    """Raise PurgeError where the new file does not have this footer."""
    target.flush()
    target.seek(0)
    there, end = read_footer(target)
    chunks = [chunk for group in there[File.ROW_GROUPS] for chunk in group[Group.COLUMNS]]
    if there != footer or any(extent(Source(target, end), chunk)[1] < 0 for chunk in chunks):
        raise PurgeError("the new file has another footer than was written; report this")
    target.seek(0)


@contextmanager
def readable() -> Generator[None, None, None]:
    """Raise PurgeError where pyarrow cannot read a file."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        what = "it is encrypted" if "crypt" in str(error).lower() else "it is damaged, or no Parquet"
        raise PurgeError(f"the file cannot be read: {what}; see to it by other means") from error


def _plain_leaf(file: Any, task: Task) -> int | None:
    """Return the column of an identifier that lies in no list or map, so that its statistics are those of rows."""
    wanted = name_of(task.identifier)
    schema = file.schema
    if task.every_row or _has_dots(file):
        return None
    for number in range(len(schema)):
        column = schema.column(number)
        if column.path == wanted and column.max_repetition_level == 0:
            return number
    return None


def _may_have(file: Any, number: int, leaf: int | None, task: Task, ids: Ids) -> bool:
    """Return whether a row group may have one of the ids, as far as the statistics of its column tell."""
    return leaf is None or task.ignore_statistics or _may_match(file.metadata.row_group(number).column(leaf), ids)


def _may_match(chunk: Any, ids: Ids) -> bool:
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return True
    if statistics.has_null_count and statistics.null_count == chunk.num_values:
        return False
    try:
        return not statistics.has_min_max or ids.may_match(statistics.min, statistics.max)
    except UnicodeDecodeError:  # strings that are none
        return True


def _leaves(file: Any, task: Task) -> Sequence[str]:
    """Return the columns to read: the identifier's leaf, under the names that lists and maps have in the file, and what
    is set to null.
    """
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    if _has_dots(file):
        return paths
    mine = [path for path in paths if path.split(".")[0] == task.identifier[0]]
    chosen = [path for path in mine if is_subsequence(task.identifier, path.split("."))] or mine
    if not task.every_row and _has_map(file.schema_arrow.field(task.identifier[0]).type):
        chosen = mine  # without its keys a map would be read as a list
    return [*chosen, *(path for path in paths for null in task.set_null if path.split(".")[: len(null)] == list(null))]


def _has_dots(file: Any) -> bool:
    """Return whether a name has a dot, so that a path does not say which column it means."""

    def has(fields: Any) -> bool:
        return any("." in field.name or has(_fields_of(field.type)) for field in fields)

    return has(file.schema_arrow)


def _fields_of(type_: Any) -> list[Any]:
    return [type_.field(number) for number in range(type_.num_fields)]


def has_dictionary(type_: Any) -> bool:
    """Return whether a type of Arrow has categories, however deep."""
    return pa.types.is_dictionary(type_) or any(has_dictionary(field.type) for field in _fields_of(type_))


def _has_map(type_: Any) -> bool:
    return pa.types.is_map(type_) or any(_has_map(field.type) for field in _fields_of(type_))


def is_subsequence(wanted: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path goes through the wanted names, in their order."""
    rest = iter(path)
    return all(step in rest for step in wanted)
