"""The ids of each data set: several sets in one folder, and which of them every data set has.

A table without a column of data sets is one set for all of them; one with such a column, and the ledger, have a set for
each. A data set whose column has another type than its ids gets them converted where that is certain: UUIDs that stand
as text become 16 bytes, and where the table names data sets, text becomes integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from refstore.errors import Invalid
from refstore.purge_document.document import Dataset
from refstore_purge import id_index, ids_file, ledger, purge_ids
from refstore_purge.formats.base import IdKind, kind_of
from refstore_purge.formats.text_values import UUID_BYTES
from refstore_purge.ledger import AnyIds, LedgerSet
from refstore_purge.purge_ids import IdSet
from refstore_purge.untyped_pandas import pa, pc

_ID_TYPES: Final[dict[IdKind, tuple[str, ...]]] = {
    "string": ("string",),
    "integer": ("integer",),
    "binary": ("uuid", "binary"),
}
"""What ids that are compared with a kind of columns can be called with --id-type."""


class DatasetIds:
    """Opens each set once, before an engine may move the files of the folder."""

    def __init__(self, folder: Path, sets: Mapping[str, Sequence[str]], *, is_for_all: bool = False) -> None:
        """`sets`: the names of each data set's sets, which differ in their type. `is_for_all`: it is one set for all,
        so nobody said for which data sets its ids are.
        """
        self.folder = folder
        self._sets = {dataset: list(names) for dataset, names in sets.items()}
        """The first one is compared with the column, all of them with what paths tell."""
        self._is_for_all = is_for_all
        self._opened: dict[str, AnyIds] = {}
        self.planned_sets = {dataset: " ".join(names) for dataset, names in sets.items()}
        """What tells data sets apart whose ids differ, also after `adapt_ids`."""
        self.count = sum(self._open_set(name).count for name in {name for names in sets.values() for name in names})
        """How many ids there are, of all sets."""

    def select_datasets(self, datasets: Iterable[Dataset]) -> tuple[Dataset, ...]:
        """Return the data sets that have ids."""
        return tuple(dataset for dataset in datasets if dataset.name in self._sets)

    def ids_of(self, dataset: Dataset) -> AnyIds:
        """Return the ids that are compared with a data set's column."""
        return self._open_set(self.set_name_of(dataset))

    def all_ids_of(self, dataset: Dataset) -> list[AnyIds]:
        """Return the ids of every type that a data set has, for values that paths tell."""
        return [self._open_set(name) for name in self._sets[dataset.name]]

    def set_name_of(self, dataset: Dataset) -> str:
        """Return the name of a data set's set, which its files begin with."""
        return self._sets[dataset.name][0]

    def group_by_set(self) -> list[tuple[AnyIds, list[str]]]:
        """Return each set with the data sets that have it."""
        found: dict[str, list[str]] = {}
        for dataset, names in sorted(self._sets.items()):
            found.setdefault(names[0], []).append(dataset)
        return [(self._open_set(name), datasets) for name, datasets in found.items()]

    def adapt_ids(self, dataset: Dataset, type_: Any) -> bool:
        """Take for a data set the ids of the type that its identifier's column has. Return False if the ledger has none
        of it: its hashes cannot be converted. Raises Invalid if a table has none.
        """
        kind = kind_of(type_)
        name = dataset.identifier
        if pa.types.is_null(type_):
            return True
        if kind is None:
            raise Invalid(f"column {name!r} of data set {dataset.name!r} is {_describe_type(type_, name)}")
        names, is_none = self._sets[dataset.name], False
        same = next((each for each in names if self._open_set(each).kind == kind), None)
        ids = self._open_set(names[0])
        if same is not None:
            self._check_width(dataset, type_, self._open_set(same))
        elif isinstance(ids, LedgerSet):
            same = ledger.write_empty_set(self.folder, f"none-{kind}-", kind, like=ids)
            is_none = True
        else:
            same = self._convert(dataset, names[0], ids, type_, kind)
        self._sets[dataset.name] = [same, *(each for each in names if each != same)]
        self._open_set(same)
        return not is_none

    def write_index_hashes(self, key: id_index.IndexKey) -> None:
        """Write the hashes by which `id_index.look_up` finds ids, of every set that a data set has."""
        for name in {names[0] for names in self._sets.values()}:
            ids = self._open_set(name)
            if isinstance(ids, IdSet):
                hashes = id_index.hash_distinct(ids.values, ids.kind, key.hash_key)
                purge_ids.write_index_hashes(self.folder, hashes, prefix=name)
                self._opened[name] = IdSet(self.folder, prefix=name)

    def _open_set(self, name: str) -> AnyIds:
        if name not in self._opened:
            self._opened[name] = ledger.open_ids(self.folder, prefix=name)
        return self._opened[name]

    def _convert(self, dataset: Dataset, name: str, ids: IdSet, type_: Any, kind: IdKind) -> str:
        """Write the ids of a set as the type of a column, where that is certain; return the new set's name. Raises
        Invalid.
        """
        wanted = ""
        if ids.kind == "string" and _width(type_) == UUID_BYTES:
            wanted = "uuid"
        elif ids.kind == "string" and kind == "integer" and not self._is_for_all:
            wanted = "integer"
        made = f"{wanted}-{name}"
        if made in self._opened:  # another data set with the same ids has it
            return made
        converted = ids_file.convert_ids(ids.values, ids.kind, wanted) if wanted else None
        if converted is None:
            unfit = {"uuid": ", not all of them UUIDs", "integer": ", not all of them integers of 64 bits"}.get(
                wanted, ""
            )
            others = {each: ids_file.convert_ids(ids.values, ids.kind, each) for each in _ID_TYPES[kind]}
            fitting = [
                each for each, values in others.items() if values is not None and _has_width(values, _width(type_))
            ]
            advice = f"say --id-type {' or '.join(fitting)}" if fitting else "give ids of its type"
            raise Invalid(
                f"column {dataset.identifier!r} of data set {dataset.name!r} is {type_}, and its ids are "
                f"{ids_file.WORDS[ids.kind]}{unfit}; {advice}{self._restrict_advice()}"
            )
        purge_ids.write_ids(self.folder, kind, [converted], prefix=made)
        return made

    def _check_width(self, dataset: Dataset, type_: Any, ids: AnyIds) -> None:
        """Raise Invalid where all values of a column have one width, and none of the ids has it."""
        width = _width(type_)
        if isinstance(ids, IdSet) and ids.count and ids.kind != "integer" and not _has_width(ids.values, width):
            advice = "give UUIDs as text, and leave --id-type out" if width == UUID_BYTES else "give such ids"
            raise Invalid(
                f"column {dataset.identifier!r} of data set {dataset.name!r} is {type_}, and none of the ids has "
                f"{width} bytes; {advice}{self._restrict_advice()}"
            )

    def _restrict_advice(self) -> str:
        return ", or purge other data sets alone with --dataset" if self._is_for_all and len(self._sets) > 1 else ""


def _width(type_: Any) -> int:
    """Return how many bytes every value of a type has; 0: they differ."""
    if isinstance(type_, pa.BaseExtensionType):
        return _width(type_.storage_type)
    return type_.byte_width if pa.types.is_fixed_size_binary(type_) else 0


def _has_width(values: Any, width: int) -> bool:
    """Return whether any value has a width; 0: all have."""
    return not width or bool(pc.any(pc.equal(pc.binary_length(values), width)).as_py())


def _describe_type(type_: Any, name: str) -> str:
    """Return why a type is none of identifiers, and what to do."""
    if pa.types.is_struct(type_):
        fields = ", ".join(f"{name}.{type_.field(number).name}" for number in range(min(type_.num_fields, 20)))
        return f"a struct; name one of its fields as the data set's identifier: {fields}"
    return f"{type_}; an identifier is text, an integer or binary: correct the data set's identifier"
