"""What stands at columns of an Avro record, as fastavro reads it (`AvroType.plain`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from refstore_purge.formats.avro_container import DAMAGED
from refstore_purge.formats.avro_schema import KEY, VALUE, AvroType
from refstore_purge.formats.base import FormatTask, IdKind, is_alike, name_of
from refstore_purge.purge_error import OtherMeansError, PurgeError


class IdentifierValues(NamedTuple):
    """Finds what stands at the identifier."""

    task: FormatTask
    kind: IdKind

    def values_in(self, value: Any, type_: AvroType, path: Sequence[str]) -> Iterator[Any]:
        """Yield the values at the rest of the identifier's path, bytes or integers. Raises PurgeError for what no id
        can be compared with.
        """
        value, type_ = _branch_of(value, type_)
        if value is None:
            return
        match type_.kind:
            case "record" if path:
                if path[0] in type_.names:
                    place = type_.names.index(path[0])
                    yield from self.values_in(value[f"c{place}"], type_.children[place], path[1:])
                elif any(is_alike(path[0], name) for name in type_.names):
                    raise PurgeError(
                        f"column {self._name!r} has one of its types in another case only; correct the data set's "
                        "identifier, or rename the column"
                    )
            case "array":
                for item in value:
                    yield from self.values_in(item, type_.children[0], path)
            case "map" if self.task.map_part == "key":
                yield from (pair[KEY] for pair in value if not path)
            case "map":
                for pair in value:
                    yield from self.values_in(pair[VALUE], type_.children[0], path)
            case _ if path:
                return
            case kind if type_.id_kind != self.kind:
                raise OtherMeansError(f"column {self._name!r} has values that are {kind}, and the ids are {self.kind}s")
            case "enum" if not 0 <= value < len(type_.names):
                raise OtherMeansError(DAMAGED)
            case "enum":
                symbol = type_.names[int(value)]
                yield symbol.encode(errors="surrogatepass")
            case _:
                yield value

    @property
    def _name(self) -> str:
        return name_of(self.task.identifier)


def find_column(value: Any, type_: AvroType, path: Sequence[str]) -> tuple[dict[str, Any], str] | None:
    """Return the record in which a column stands that is to be null, and its field; None: it is null, or not there.
    Raises PurgeError where it cannot be null.
    """
    record, type_ = _branch_of(value, type_)
    if record is None or type_.kind != "record" or path[0] not in type_.names:
        return None
    place = type_.names.index(path[0])
    field, child = f"c{place}", type_.children[place]
    if len(path) > 1:
        return find_column(record[field], child, path[1:])
    if record[field] is not None and not child.is_nullable:
        raise PurgeError("a column to be null is required in some of its types; delete the rows instead")
    return None if record[field] is None else (record, field)


def _branch_of(value: Any, type_: AvroType) -> tuple[Any, AvroType]:
    """Return the value of a union, and its type."""
    if type_.kind != "union" or value is None:
        return value, type_
    if type_.names:
        name, branch = value
        return branch[VALUE], type_.children[type_.names.index(name)]
    return value, next(each for each in type_.children if each.kind != "null")
