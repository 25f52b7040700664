"""Tell for `verify` whether a folder, the path or the metadata of an object has the identifier's value."""

from __future__ import annotations

from urllib.parse import unquote

from refstore.purge_document.document import ERASE, Dataset
from refstore_purge.verify_ids import HIVE_NULL, INTEGER_TEXT, WantedIds
from refstore_purge.verify_objects import VerifyTarget


def find_value_in_names(dataset: Dataset, target: VerifyTarget) -> tuple[str | None, str]:
    """Return the identifier's value if a folder, the path or the metadata has it; and a name of one of these that is
    the identifier in another case only.
    """
    below = target.path[len(dataset.prefix) :]
    if dataset.template is not None:
        return dataset.template.identifier_of(below), ""
    value, other_case = _value_of_folder(dataset.identifier, below)
    if dataset.mode == ERASE and value is None:
        metadata = target.entry.metadata
        value = metadata.get(dataset.identifier)
        other_case = other_case or next((name for name in metadata if _is_alike(name, dataset.identifier)), "")
    return value, "" if value is not None else other_case


def find_doubt(dataset: Dataset, value: str | None, other_case: str, ids: WantedIds) -> str:
    """Return why the names of an object do not tell whose it is; '': they do, or need not."""
    if dataset.mode == ERASE:
        return describe_other_case(other_case) if other_case else ""
    if value is None or value == HIVE_NULL:
        return ""
    if "\ufffd" in value:
        return f"the value of {dataset.identifier!r} in its path is no UTF-8"
    if ids.kind == "integer" and not INTEGER_TEXT.fullmatch(value):
        return f"the value of {dataset.identifier!r} in its path is no integer, and the ids are integers"
    return ""


def _value_of_folder(identifier: str, below: str) -> tuple[str | None, str]:
    """Return the value of the identifier's folder `name=value`; and the name of a folder that differs only in case."""
    other_case = ""
    for folder in below.split("/")[:-1]:
        if "=" not in folder.strip("="):
            continue
        name, _, value = folder.partition("=")
        if unquote(name) == identifier:
            return unquote(value), ""
        if _is_alike(unquote(name), identifier):
            other_case = unquote(name)
    return None, other_case


def _is_alike(name: str, identifier: str) -> bool:
    return name.casefold() == identifier.casefold()


def describe_other_case(name: str) -> str:
    return f"{name!r} in its path or metadata is the identifier in another case"
