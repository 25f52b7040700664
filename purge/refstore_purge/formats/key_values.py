"""Find ids in the key-value metadata of files (Parquet's footer, ORC's user metadata, Avro's header), and leave such
entries out.

An entry has an id if its key or its value, as text, is one: an integer in plain decimal digits, or a UUID. Numbers of
up to five digits count only in Hudi's bounds: elsewhere, as in `format-version`, they are somebody's by chance. Texts
that merely contain an id, such as JSON, are not taken apart, with two exceptions:

    ARROW:schema                the schema of Arrow, which has metadata of its own
    hoodie_min_record_key       Hudi's bounds of the record keys, which may be `field:value,field:value`
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from refstore_purge.formats.base import IdMatcher
from refstore_purge.formats.text_values import match_texts
from refstore_purge.purge_error import OtherMeansError
from refstore_purge.untyped_pandas import pa

ARROW_SCHEMA: Final = b"ARROW:schema"
HUDI_BOUNDS: Final = frozenset({b"hoodie_min_record_key", b"hoodie_max_record_key"})
HUDI: Final = HUDI_BOUNDS | {
    b"org.apache.hudi.bloomfilter",
    b"com.uber.hoodie.bloomfilter",
    b"hoodie_bloom_filter_type_code",
}
"""What Hudi writes about the record keys of a file. None of it is true of a file that lost rows, and the filter still
answers whether an id was there.
"""
_SHORT_NUMBER: Final = re.compile(rb"-?[0-9]{1,5}")
_INTEGER: Final = re.compile(rb"-?(0|[1-9][0-9]{0,19})")

KeyValueMetadata = Mapping[bytes, bytes] | None
HasId = Callable[[bytes, bytes], bool]


def find_ids(texts: Iterable[bytes], ids: IdMatcher) -> set[bytes]:
    """Return which texts are one of the ids."""
    wanted = sorted({text for text in texts if ids.kind != "integer" or _INTEGER.fullmatch(text)})
    if not wanted:
        return set()
    return {text for text, is_id in zip(wanted, match_texts(wanted, ids), strict=True) if is_id}


def count_entries_with_ids(metadata: Iterable[KeyValueMetadata], ids: IdMatcher) -> int:
    """Return how many entries have an id."""
    texts = [entry for each in metadata for entry in _texts_of_entries(each).values()]
    found = find_ids((text for entry in texts for text in entry), ids) if texts else set[bytes]()
    return sum(1 for entry in texts if not found.isdisjoint(entry))


def drop_ids(metadata: KeyValueMetadata, ids: IdMatcher, *, rows_changed: bool) -> dict[bytes, bytes]:
    """Return the metadata of a file that is written again: without the entries that have an id, and without what Hudi
    says about the keys if rows changed. Raises PurgeError.
    """
    entries = _texts_of_entries(metadata)
    found = find_ids((text for entry in entries.values() for text in entry), ids)

    def has_id(key: bytes, value: bytes) -> bool:
        return not found.isdisjoint(_texts_of_pair(key, value))

    kept: dict[bytes, bytes] = {}
    for key, value in (metadata or {}).items():
        if rows_changed and key in HUDI:
            continue
        if found.isdisjoint(entries[key]):
            kept[key] = value
        elif key == ARROW_SCHEMA and (schema := decode_arrow_schema(value)) is not None:
            kept[key] = base64.b64encode(_drop_from_schema(schema, has_id).serialize().to_pybytes())
    if count_entries_with_ids([kept], ids):
        raise OtherMeansError("an id stands in the metadata of a nested column, from where it cannot be taken")
    return kept


def _texts_of_entries(metadata: KeyValueMetadata) -> dict[bytes, set[bytes]]:
    """Return the texts of each entry that may be ids, by key."""
    return {key: set(_texts_of_entry(key, value)) for key, value in (metadata or {}).items()}


def _texts_of_entry(key: bytes, value: bytes) -> Iterator[bytes]:
    if key == ARROW_SCHEMA and (schema := decode_arrow_schema(value)) is not None:
        for pair in _pairs_of_schema(schema):
            yield from _texts_of_pair(*pair)
    else:
        yield from _texts_of_pair(key, value)


def _texts_of_pair(key: bytes, value: bytes) -> Iterator[bytes]:
    """Yield what means one of the ids if it is the same. An empty text is nobody's."""
    if key in HUDI_BOUNDS:
        yield from filter(None, (key, value, *(part.partition(b":")[2] for part in value.split(b","))))
    else:
        yield from (text for text in (key, value) if text and not _SHORT_NUMBER.fullmatch(text))


def _pairs_of_schema(schema: Any) -> Iterator[tuple[bytes, bytes]]:
    yield from (schema.metadata or {}).items()
    yield from _pairs_of_fields(schema)


def _pairs_of_fields(fields: Iterable[Any]) -> Iterator[tuple[bytes, bytes]]:
    for field in fields:
        yield from (field.metadata or {}).items()
        yield from _pairs_of_fields(field.type.field(number) for number in range(field.type.num_fields))


def decode_arrow_schema(value: bytes) -> Any:
    """Return the schema that Arrow's writers put into a file; None: it cannot be read, so no reader uses it."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value, validate=True)))
    except (pa.ArrowException, binascii.Error, OSError):
        return None


def _drop_from_schema(schema: Any, has_id: HasId) -> Any:
    fields = [_drop_from_field(field, has_id) for field in schema]
    return pa.schema(fields, metadata=_drop_from_pairs(schema.metadata, has_id))


def _drop_from_field(field: Any, has_id: HasId) -> Any:
    type_ = field.type
    children = [_drop_from_field(type_.field(number), has_id) for number in range(type_.num_fields)]
    if pa.types.is_struct(type_):
        type_ = pa.struct(children)
    elif pa.types.is_large_list(type_):
        type_ = pa.large_list(children[0])
    elif pa.types.is_fixed_size_list(type_):
        type_ = pa.list_(children[0], type_.list_size)
    elif pa.types.is_list(type_):
        type_ = pa.list_(children[0])
    elif pa.types.is_map(type_):
        key, item = children[0].type
        type_ = pa.map_(key, item, keys_sorted=type_.keys_sorted)
    return field.with_type(type_).with_metadata(_drop_from_pairs(field.metadata, has_id))


def _drop_from_pairs(metadata: KeyValueMetadata, has_id: HasId) -> dict[bytes, bytes] | None:
    kept = {key: value for key, value in (metadata or {}).items() if not has_id(key, value)}
    return kept or None
