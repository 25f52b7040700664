"""Refuse an argument of another type than its method declares, before anything is read or written.

Records are encoded as they are given: a text where a number belongs would be written, and no reader could decode it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from inspect import signature
from pathlib import PurePath
from typing import Final, cast

from refstore.errors import Invalid


def check_text(value: object, name: str) -> None:
    if isinstance(value, str):
        return
    advice = {"NoneType": "a text", "bytes": f"{name}.decode()"}.get(type(value).__name__, f"str({name})")
    if isinstance(value, PurePath):
        advice = f"{name}.as_posix()"
    raise Invalid(f"{name} is {_describe_value(value)}, and must be a text; give {advice}")


def check_whole_number(value: object, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(
            f"{name} is {_describe_value(value)}, and must be a whole number; give int({name}) if it stands for one"
        )


def check_flag(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise Invalid(f"{name} is {_describe_value(value)}, and must be True or False; give one of these")


def check_moment(value: object, name: str) -> None:
    """Check that a point in time is a datetime with a time zone: one without means another time in each place."""
    if not isinstance(value, datetime):
        raise Invalid(
            f"{name} is {_describe_value(value)}, and must be a datetime with a time zone; give datetime.now(UTC), or "
            "datetime.fromtimestamp(seconds, UTC)"
        )
    if value.utcoffset() is None:
        raise Invalid(f"{name} is a datetime without a time zone; give {name}.replace(tzinfo=UTC) if it is in UTC")


def check_metadata(value: object, name: str) -> None:
    """Check that user metadata maps texts to texts."""
    if not isinstance(value, Mapping):
        raise Invalid(f"{name} is {_describe_value(value)}, and must be a dict of texts, such as {{'owner': 'ann'}}")
    for key, item in cast("Mapping[object, object]", value).items():
        if not isinstance(key, str):
            raise Invalid(
                f"{name} has the key {_describe_value(key)}, and may have texts only; give str({key!r}) instead"
            )
        if not isinstance(item, str):
            raise Invalid(
                f"{name}[{key!r}] is {_describe_value(item)}, and metadata holds texts only; give str(...), or "
                f"json.dumps(...)"
            )


def check_collection(value: object, name: str) -> None:
    """Check that the argument of a bulk call is a collection, and not one text or one item."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise Invalid(
            f"{name} is {_describe_value(value)}, and must be a list or another iterable; of one item, give [{name}]"
        )


def check_items(values: Iterable[object], kind: type) -> None:
    """Check that each item of a bulk call is of the kind that the call takes, and has fields of the types that it
    declares.
    """
    checks = _field_checks(kind)
    for value in values:
        if not isinstance(value, kind):
            raise Invalid(
                f"an item is {_describe_value(value)}, and must be a refstore.{kind.__name__}; give "
                f"refstore.{kind.__name__}({', '.join(_field_names(kind))})"
            )
        for name, check in checks:
            check(getattr(value, name), name)


@lru_cache
def _field_checks(kind: type) -> list[tuple[str, Callable[[object, str], None]]]:
    fields = {name: of for each in kind.__mro__ for name, of in vars(each).get("__annotations__", {}).items()}
    # a named tuple has forward references
    texts = {name: getattr(each, "__forward_arg__", each) for name, each in fields.items()}
    return [(name, check) for name, each in texts.items() if (check := find_check(each))]


def check_document(value: object, name: str) -> None:
    """Check that a document is its JSON, or an object that has it."""
    if not isinstance(value, str) and not hasattr(value, "to_json"):
        raise Invalid(
            f"{name} is {_describe_value(value)}, and must be a JSON text or its typed form, such as "
            "refstore.Retention; give json.dumps(...) of a dict"
        )


def _allow_none(check: Callable[[object, str], None]) -> Callable[[object, str], None]:
    def run(value: object, name: str) -> None:
        if value is not None:
            check(value, name)

    return run


CHECKS: Final[Mapping[str, Callable[[object, str], None]]] = {
    "str": check_text,
    "str | None": _allow_none(check_text),
    "int": check_whole_number,
    "int | None": _allow_none(check_whole_number),
    "bool": check_flag,
    "datetime": check_moment,
    "datetime | None": _allow_none(check_moment),
    "Mapping[str, str] | None": _allow_none(check_metadata),
    "PurgeDocument | str": check_document,
    "Retention | str": check_document,
    "Retention | str | None": _allow_none(check_document),
}
"""By the text of an annotation. What is not here is checked by whom it concerns."""


def find_check(annotation: str) -> Callable[[object, str], None] | None:
    """Return the check of what is annotated so; None if there is none."""
    if annotation.startswith(("Sequence[", "Iterable[", "Collection[")) and annotation.endswith("]"):
        return check_collection
    return CHECKS.get(annotation)


def _describe_value(value: object) -> str:
    """Name a value and its type; of a long one only the type."""
    kind = type(value).__name__
    return (
        f"{value!r} ({kind})" if isinstance(value, int | float | str) and len(repr(value)) <= 40 else f"of type {kind}"
    )


def _field_names(kind: type) -> list[str]:
    """Return the names of the fields that a kind of item must have."""
    return [name for name, field in signature(kind).parameters.items() if field.default is field.empty]
