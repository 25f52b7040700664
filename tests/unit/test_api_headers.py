"""Headers of the API: ranges, conditions, and what may stand in one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.core import ids
from refstore.core.ids import Address
from refstore.errors import Invalid
from refstore.records.staging_records import StoredEntry
from refstore_http import headers
from refstore_http.headers import ByteRange, matches_etag, object_headers, parse_range
from refstore_http.http_errors import RangeNotSatisfiable

BREAKS = "\r\n\v\f\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\0"
"""What Python takes for a space, or a line's end."""


def entry(**changes: object) -> StoredEntry:
    fields: dict[str, object] = {
        "address": Address("data/x"),
        "size_bytes": 10,
        "checksum": "abc",
        "mtime_ms": 1_763_708_400_000,
    }
    return StoredEntry(**(fields | changes))


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("bytes=0-9", (0, 10)),
        ("bytes=0-0", (0, 1)),
        ("bytes=9-", (9, 10)),
        ("bytes=5-100", (5, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-100", (0, 10)),
        (" bytes=1-2 ", (1, 3)),
    ],
)
def test_a_range_is_cut_to_the_object(header: str, part: tuple[int, int]) -> None:
    assert parse_range(header, 10) == ByteRange(*part)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=0-1,3-4",
        "items=0-1",
        "bytes=a-b",
        "bytes=٣-٤",
        "bytes=1-2\n3",
    ],
)
def test_what_is_no_range_is_the_whole(header: str | None) -> None:
    assert parse_range(header, 10) is None


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=11-12", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)]
)
def test_a_range_that_the_object_does_not_have_is_refused_with_its_size(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable) as refused:
        parse_range(header, size)
    assert refused.value.size_bytes == size


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_reads_what_slicing_reads(size: int, first: int, last: int) -> None:
    body = bytes(range(size))
    try:
        part = parse_range(f"bytes={first}-{last}", size)
    except RangeNotSatisfiable:
        assert not body[first : last + 1]
        return
    assert (body if part is None else body[part.start : part.end]) == (body if last < first else body[first : last + 1])


@pytest.mark.parametrize("condition", ["*", " * ", '"abc"', 'W/"abc"', '"x", "abc"', "abc"])
def test_a_condition_that_names_the_object_holds(condition: str) -> None:
    assert matches_etag(condition, entry())


@pytest.mark.parametrize("condition", [None, "", '"x"', '"abcd"', "**", '"ab", "c"'])
def test_a_condition_that_names_another_does_not(condition: str | None) -> None:
    assert not matches_etag(condition, entry())


@pytest.mark.parametrize("checksum", ["", 'a"b', "a\r\nb", "é"])
def test_a_checksum_that_no_header_can_hold_names_nothing(checksum: str) -> None:
    assert headers.etag_of(entry(checksum=checksum)) == '""'
    assert not matches_etag('""', entry(checksum=checksum))


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_header_can_end_another(name: str, value: str, kind: str, checksum: str) -> None:
    found = object_headers(entry(metadata={name: value}, content_type=kind, checksum=checksum))
    for field, text in found.items():
        assert field.isascii()
        assert all(char == "\t" or " " <= char <= "~" for char in field + text)


@pytest.mark.parametrize("text", ["", "text/plain", "text/plain; charset=utf-8", "application/vnd.x+json"])
def test_a_content_type_is_taken(text: str) -> None:
    assert ids.content_type(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "text",
        "text/",
        "/plain",
        "a b/c",
        "text/plain\r\nX: 1",
        "text/plain;\n",
        "a/b/c",
        "x/" + "y" * 300,
        "é/x",
        *(f"text/plain{char};x" for char in BREAKS),
        *(f"text/plain;{char}" for char in BREAKS),
    ],
)
def test_what_is_no_content_type_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        ids.content_type(text)


def test_what_was_uploaded_is_known_by_its_md5_as_on_s3() -> None:
    first, same, other = (
        entry(address=Address(f"data/2026112107/{number:026d}"), md5=md5) for number, md5 in enumerate("aab")
    )
    assert headers.etag_of(first) == headers.etag_of(same) == '"a"'
    assert matches_etag(headers.etag_of(first), same)
    assert headers.is_range_allowed(headers.etag_of(first), same)
    assert not matches_etag(headers.etag_of(first), other)


def test_what_was_linked_is_known_by_its_address() -> None:
    """Of what is linked the checksum is whatever its linker said."""
    made = [Address(f"data/2026112107/{number:026d}") for number in range(2)]
    first, second = (entry(address=address, checksum="any") for address in made)
    assert headers.etag_of(first) == f'"{made[0]}"'
    assert matches_etag(headers.etag_of(first), first)
    assert not matches_etag(headers.etag_of(first), second)
    assert not headers.is_range_allowed(headers.etag_of(first), second)
