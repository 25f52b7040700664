"""The purge document: one JSON text for each repository that says which data sets may be purged (seed 002, onboarding).

    {
      "whitelist": ["tracking.*"],
      "datasets": [{"name": "tracking.event", "prefix": "tracking/event/", "format": "parquet",
                    "identifier": "metadata.guestid", "mode": "keep-history"}],
      "backup": {"days": 30, "versions": 2},
      "trash": {"days": 7}
    }

A data set is purged only if it is described here and its name is on the whitelist. `docs/purge.md` explains each field,
and `docs/purge.schema.json` is the schema. An unknown field is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec

from refstore.core import ids
from refstore.core.json_documents import read
from refstore.errors import Invalid, InvalidPath, InvalidPurge
from refstore.purge_document.path_template import PathTemplate
from refstore.retention import globs

DAYS_MAX: Final = 36_500
VERSIONS_MAX: Final = 1_000
COLUMNS_MAX: Final = 100

NAME_FORM: Final = "use up to 255 letters, digits and '_ . -', beginning with a letter or digit"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")

FileFormat = Literal["parquet", "orc", "avro", "json", "csv"]
FILE_FORMATS: Final[tuple[FileFormat, ...]] = get_args(FileFormat)
PurgeMode = Literal["keep-history", "rewrite", "erase"]

KEEP_HISTORY: Final = "keep-history"
ERASE: Final = "erase"


class _DocumentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the document."""


class Dataset(_DocumentPart, frozen=True):
    """A data set: everything below a prefix."""

    name: str
    prefix: str
    """Ends with '/'. Below it, folders `key=value/` are partitions."""
    identifier: str
    """The column that has the ids; a dot leads into a struct: `metadata.guestid`. Of CSV: a field of the header."""
    mode: PurgeMode
    """`keep-history`: the branches' heads only, by commits; `rewrite` and `erase`: every version."""
    format: FileFormat | None = None
    """None: objects that cannot be rewritten; only the mode `erase` knows them."""
    map_part: Literal["key", "value"] = "value"
    """Which part of a map on the identifier's way is meant."""
    set_null: Annotated[tuple[str, ...], msgspec.Meta(max_length=COLUMNS_MAX)] = ()
    """Columns to set to null in the rows of the ids. None given: the rows are deleted."""
    path: str = ""
    """Of the mode `erase`: where the identifier stands in the path below the prefix, such as `{guestid}/*.jpg`
    (`path_template.py`). None given: in a folder `identifier=value`, or in the objects' user metadata.
    """
    branches: tuple[str, ...] = ()
    """Names and globs of the branches whose heads are purged, in the mode `keep-history`. None given: all."""
    description: str = ""
    """For people."""

    @property
    def template(self) -> PathTemplate | None:
        """The template of `path`, if there is one."""
        return _parse_template(self.path, self.identifier) if self.path else None

    def has_branch(self, name: str) -> bool:
        return not self.branches or any(globs.matches_glob(glob, name) for glob in self.branches)


_parse_template = lru_cache(maxsize=1000)(PathTemplate)


class BackupPolicy(_DocumentPart, frozen=True):
    """An original goes when it is older than `days`, or not among the newest `versions`, whichever comes first."""

    days: Annotated[int, msgspec.Meta(ge=0, le=DAYS_MAX)] = 30
    versions: Annotated[int, msgspec.Meta(ge=0, le=VERSIONS_MAX)] = 2


class TrashPolicy(_DocumentPart, frozen=True):
    """What a restore replaced goes after `days`."""

    days: Annotated[int, msgspec.Meta(ge=0, le=DAYS_MAX)] = 7


class PurgeDocument(_DocumentPart, frozen=True):
    """Which data sets of a repository may be purged, and how long backups stay. `repo.onboard_purge` sets it."""

    whitelist: tuple[str, ...] = ()
    """Names and globs of data sets."""
    datasets: tuple[Dataset, ...] = ()
    backup: BackupPolicy = BackupPolicy()
    trash: TrashPolicy = TrashPolicy()

    @staticmethod
    def from_json(text: str) -> PurgeDocument:
        """Read a document. Raises InvalidPurge with the place and the reason."""
        return read_document(text).document

    def to_json(self) -> str:
        """Return the document as people read it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    def is_whitelisted(self, dataset: Dataset) -> bool:
        """Return whether a data set is on the whitelist."""
        return any(globs.matches_glob(glob, dataset.name) for glob in self.whitelist)

    @property
    def onboarded_datasets(self) -> tuple[Dataset, ...]:
        """The data sets that are on both lists, in order of their prefixes."""
        return tuple(sorted(filter(self.is_whitelisted, self.datasets), key=lambda dataset: dataset.prefix))

    def select_datasets(self, names: Sequence[str]) -> tuple[Dataset, ...]:
        """Return the onboarded data sets, or those of them that are named. Raises Invalid."""
        onboarded = self.onboarded_datasets
        for name in names:
            if all(name != each.name for each in onboarded):
                known = ", ".join(sorted(each.name for each in onboarded))
                raise Invalid(f"no data set {name!r} is onboarded; onboarded are: {known}")
        return tuple(each for each in onboarded if not names or each.name in names)


class ParsedPurge(NamedTuple):
    document: PurgeDocument
    warnings: tuple[str, ...]


_FIELDS: Final = sorted(
    {name for part in (PurgeDocument, Dataset, BackupPolicy, TrashPolicy) for name in part.__struct_fields__}
)


def read_document(text: str) -> ParsedPurge:
    """Parse a purge document. Raises InvalidPurge with the place and the reason."""
    document = read(text, PurgeDocument, InvalidPurge, _FIELDS)
    for index, glob in enumerate(document.whitelist):
        if not globs.is_valid(glob):
            raise InvalidPurge(
                f"{glob[:80]!r} is neither a data set's name nor a glob; {globs.GLOB_FORM}", place=f"whitelist[{index}]"
            )
    for index, dataset in enumerate(document.datasets):
        _check_dataset(dataset, f"datasets[{index}]")
    _refuse_duplicates(document)
    return ParsedPurge(document, tuple(_warnings(document)))


def json_schema() -> dict[str, Any]:
    """Return the document's JSON schema. It cannot say everything: `read_document` does."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(PurgeDocument)}


def _check_dataset(dataset: Dataset, place: str) -> None:
    if not _NAME.fullmatch(dataset.name):
        raise InvalidPurge(f"{dataset.name[:80]!r} is not a name of a data set; {NAME_FORM}", place=f"{place}.name")
    try:
        ids.path_prefix(dataset.prefix)
    except InvalidPath as error:
        raise InvalidPurge(str(error), place=f"{place}.prefix") from None
    if not dataset.prefix.endswith("/"):
        raise InvalidPurge(
            f"prefix {dataset.prefix!r} is no folder; end it with '/', or others begin like it", place=f"{place}.prefix"
        )
    for name in (dataset.identifier, *dataset.set_null):
        if not name or (dataset.format != "csv" and not all(name.split("."))):  # CSV has no structs
            raise InvalidPurge(
                f"{name[:80]!r} is not a column; write its name, with a dot before a field of a struct",
                place=f"{place}.identifier" if name == dataset.identifier else f"{place}.set_null",
            )
    if dataset.format is None and dataset.mode != "erase":
        raise InvalidPurge(
            f"mode {dataset.mode!r} needs a format: {', '.join(FILE_FORMATS[:-1])} or {FILE_FORMATS[-1]}", place=place
        )
    if dataset.path:
        if dataset.mode != ERASE:
            raise InvalidPurge(
                f"mode {dataset.mode!r} looks at rows; leave path out, or use erase", place=f"{place}.path"
            )
        try:
            PathTemplate(dataset.path, dataset.identifier)
        except ValueError as error:
            raise InvalidPurge(
                f"{dataset.path[:80]!r} is no template of a path; {error}", place=f"{place}.path"
            ) from None
    if dataset.mode == "erase" and dataset.set_null:
        raise InvalidPurge("mode 'erase' removes whole objects; leave set_null out", place=f"{place}.set_null")
    if dataset.branches and dataset.mode != KEEP_HISTORY:
        raise InvalidPurge(
            f"mode {dataset.mode!r} purges every version; leave branches out, or use keep-history",
            place=f"{place}.branches",
        )
    for index, glob in enumerate(dataset.branches):
        if not globs.is_valid(glob):
            raise InvalidPurge(
                f"{glob[:80]!r} is neither a branch's name nor a glob; {globs.GLOB_FORM}",
                place=f"{place}.branches[{index}]",
            )


def _refuse_duplicates(document: PurgeDocument) -> None:
    names: dict[str, int] = {}
    for index, dataset in enumerate(document.datasets):
        if dataset.name in names:
            raise InvalidPurge(
                f"data set {dataset.name!r} is there twice (first in datasets[{names[dataset.name]}]); keep one",
                place=f"datasets[{index}].name",
            )
        names[dataset.name] = index
        for other in document.datasets[:index]:
            if dataset.prefix.startswith(other.prefix) or other.prefix.startswith(dataset.prefix):
                raise InvalidPurge(
                    f"prefix {dataset.prefix!r} and {other.prefix!r} of {other.name!r} lie within one another; an "
                    "object can be in one data set only",
                    place=f"datasets[{index}].prefix",
                )


def _warnings(document: PurgeDocument) -> list[str]:
    warnings = [
        f"data set {dataset.name!r} is not on the whitelist: it is not purged"
        for dataset in document.datasets
        if not document.is_whitelisted(dataset)
    ]
    warnings += [
        f"data set {dataset.name!r} has a format, which the mode 'erase' does not look at"
        for dataset in document.datasets
        if dataset.mode == ERASE and dataset.format is not None
    ]
    return warnings + [
        f"nothing is described for {glob!r} of the whitelist"
        for glob in document.whitelist
        if not any(globs.matches_glob(glob, dataset.name) for dataset in document.datasets)
    ]
