"""What each file format offers to the purge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, Protocol

from refstore_purge.purge_error import PurgeError
from refstore_purge.untyped_pandas import pa

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IdKind = Literal["string", "integer", "binary"]
"""The families of types that an identifier may have. Widths of integers and of strings' offsets make no difference."""

TEXT_BATCH_BYTES: Final = 2 * 1024 * 1024
"""How much of a text file is decoded at a time. In lines of two bytes each it takes 20 times as much."""


class MissingColumnError(PurgeError):
    """An object that has no such column as the identifier."""


def unknown_failure(error: Exception) -> str:
    """Return why an object stays at which a library fails in a way that nobody knows."""
    return f"reading or writing it failed ({type(error).__name__}); report this, and see to it by other means"


class IdMatcher(Protocol):
    """The ids whose rows go."""

    @property
    def kind(self) -> IdKind: ...

    def matches(self, values: Any) -> NDArray[np.bool_]:
        """Return for each value, all of this kind, whether it is one of the ids. Null is none."""
        ...

    def may_match(self, minimum: Any, maximum: Any) -> bool:
        """Return whether an id may lie between two values, both included."""
        ...


@dataclass(frozen=True, slots=True)
class FormatTask:
    """What is to be found in an object, and done about it."""

    identifier: tuple[str, ...]
    """The path to the column, from the outermost: ('metadata', 'guestid')."""
    map_part: Literal["key", "value"] = "value"
    """Which part of a map is the identifier, or contains it."""
    set_null: tuple[tuple[str, ...], ...] = ()
    """Paths to the columns to set to null in the rows that match. None given: the rows go."""
    matches_every_row: bool = False
    """Whether every row matches, because the identifier is a partition's value; then no column has it."""
    ignores_statistics: bool = False
    """Whether the column is read also where statistics say that none of the ids is in it."""


class SearchResult(NamedTuple):
    """What a look for the ids found, or what of a file was written again."""

    rows: int
    """All rows of the object."""
    matched_rows: int
    """Rows that match; a rewrite removes or changes them."""
    decided_by: Literal["partition", "statistics", "column"]
    """What told so: the partition's value, the statistics alone, or the column."""
    matched_entries: int = 0
    """Entries of the file's key-value metadata that have an id; a rewrite leaves them out."""
    has_identifier: bool | None = True
    """Whether there is such a column; of JSON lines, whether any line has the field, be it null. None: nulls on
    the way to it leave that open, or there are no lines."""


class FormatModule(Protocol):
    """The module of a format."""

    @property
    def schema_of(self) -> Callable[[BinaryIO], Any] | None:
        """Returns the schema of a file, as one of Arrow. Raises PurgeError, or what pyarrow raises. None: files of this
        format do not say which type their identifiers have.
        """
        ...

    def find(self, source: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
        """Look for the ids in an object, and read no more than that needs. Raises PurgeError."""
        ...

    def rewrite(self, source: BinaryIO, target: BinaryIO, task: FormatTask, ids: IdMatcher) -> SearchResult:
        """Write the object without the rows that match, or with nulls in them. Raises PurgeError."""
        ...


def kind_of(type_: Any) -> IdKind | None:
    """Return which kind a type of Arrow is; None: no identifier has it."""
    if isinstance(type_, pa.BaseExtensionType):  # such as Arrow's UUIDs
        return kind_of(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return kind_of(type_.value_type)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_integer(type_):
        return "integer"
    if (
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_binary_view(type_)
    ):
        return "binary"
    return None


def name_of(path: Sequence[str]) -> str:
    """Return a column's path as people write it."""
    return ".".join(path)


def find_column_type(schema: Any, path: Sequence[str], map_part: str) -> Any:
    """Return the identifier's type in a schema of Arrow; None: there is no such column."""
    columns = _find_columns(pa.struct(list(schema)), path, map_part)
    return next((type_ for names, type_ in columns if names == tuple(path)), None)


def column_error(name: str, where: str = "", *, other_case: str = "") -> MissingColumnError:
    """Return the error for a missing identifier. `other_case`: a name that differs from it in case only."""
    other = f", but {other_case!r}, in another case" if other_case else ""
    way = ", or rename the column" if other_case else ""
    return MissingColumnError(f"there is no column {name!r}{where}{other}; correct the data set's identifier{way}")


def schema_column_error(schema: Any, path: Sequence[str], map_part: str) -> MissingColumnError:
    """Return the error for a schema of Arrow that has no such column; it names one in another case."""
    others = (names for names, _ in _find_columns(pa.struct(list(schema)), path, map_part))
    other = next((name_of(names) for names in others if names != tuple(path)), "")
    return column_error(name_of(path), other_case=other)


def _find_columns(type_: Any, path: Sequence[str], map_part: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the names and the type of each column whose path is this one, in whatever case."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        yield from _find_columns(type_.value_type, path, map_part)
    elif pa.types.is_map(type_):
        yield from _find_columns(type_.key_type if map_part == "key" else type_.item_type, path, map_part)
    elif not path:
        yield (), type_
    elif pa.types.is_struct(type_):
        for field in type_:
            if is_alike(field.name, path[0]) and type_.get_field_index(field.name) >= 0:  # else it is there twice
                for names, found in _find_columns(field.type, path[1:], map_part):
                    yield (field.name, *names), found


def is_alike(name: str, wanted: str) -> bool:
    """Return whether two names differ in case at most."""
    return name == wanted or name.casefold() == wanted.casefold()
