"""CSV: what stays is kept byte for byte, and what readers take in different ways is refused."""

from __future__ import annotations

import csv as plain
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.purge_document.document import read_document
from refstore_purge.formats import compression, csv
from refstore_purge.purge_error import PurgeError
from tests.purge.datasets import TEXT_CODECS
from tests.purge.looking import find, id_set, rewrite, task

GUEST = task("guest")


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"n,guest\n1,bob\n2,ann\n", b"n,guest\n2,ann\n"),
        (b"n,guest\r\n1,bob\r\n2,ann\r\n", b"n,guest\r\n2,ann\r\n"),
        (b"\xef\xbb\xbfguest,n\nbob,1\nann,2", b"\xef\xbb\xbfguest,n\nann,2"),
        (b'"n","guest"\n"1","bob"\n"2", ann\n'.replace(b" ", b""), b'"n","guest"\n"2",ann\n'),
        (b'n,guest\n"two\nlines, ""bob""",ann\n1,bob\n', b'n,guest\n"two\nlines, ""bob""",ann\n'),
        (b'n,guest\n"bob\n",bob\n3,\n', b"n,guest\n3,\n"),
        (b"n,guest\n\n1,bob\n\r\n2,ann\n", b"n,guest\n\n\r\n2,ann\n"),
        (b"n,guest\n1,bob\n2,bob", b"n,guest\n"),
        (b"n,guest\n", b"n,guest\n"),
        (b'n,guest\n"a\rb",ann\n1,bob\n', b'n,guest\n"a\rb",ann\n'),
        (b"", b""),
    ],
)
def test_records_that_stay_are_kept_byte_for_byte(body: bytes, kept: bytes) -> None:
    assert rewrite(csv, body, GUEST, id_set("bob"))[0] == kept


@pytest.mark.parametrize("codec", TEXT_CODECS)
def test_a_file_stays_compressed_as_it_was(codec: str) -> None:
    pack, unpack = TEXT_CODECS[codec]
    made, counts = rewrite(csv, pack(b"n,guest\n1,bob\n2,ann\n"), GUEST, id_set("bob"))
    assert unpack(made) == b"n,guest\n2,ann\n"
    assert compression.detect_codec(io.BytesIO(made)) == codec
    assert counts == (2, 1)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"n,guest\n1,bob,3\n", "line 2 has 3 fields and the header 2"),
        (b"n,guest\n1\n", "line 2 has 1 fields"),
        (b'n,guest\n1,bo"b\n2,an"n\n', "line 2 has a quote that is not closed, or not where a field begins"),
        (b'n,guest\n"a"b,bob\n', "line 2 has a quote"),
        (b'n,guest\n1,"bob\n', "line 2 has a quote that is not closed"),
        (b'n,guest\n"a\\"",bob\n', "line 2 has a quote after a backslash"),
        (b'n,guest\n"x\ny",1\n1,bob\r2,ann\n', "line 4 has a carriage return"),
        (b"n,who\n1,bob\n", "there is no column 'guest' in the header"),
        (b"guest,guest\n1,bob\n", "there is more than one column 'guest'"),
        (b"n,guest\n1,b\xe4r\n", "line 2 is not UTF-8 in column 'guest'"),
        (b"\nn,guest\n1,bob\n", "there is no column"),
    ],
)
def test_what_readers_take_in_different_ways_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(PurgeError, match=told):
        find(csv, body, GUEST, id_set("bob"))


@pytest.mark.parametrize("codec", [name for name in TEXT_CODECS if name != "none"])
def test_a_file_that_is_cut_off_is_refused(codec: str) -> None:
    body = TEXT_CODECS[codec][0](b"n,guest\n" + b"".join(b"%d,g%d\n" % (n, n * n) for n in range(9000)))
    with pytest.raises(PurgeError, match="damaged"):
        find(csv, body[: len(body) // 2], GUEST, id_set("bob"))


def test_a_record_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "RECORD_BYTES_MAX", 1000)
    with pytest.raises(PurgeError, match="longer than 64 MiB"):
        find(csv, b'n,guest\n"' + b"x" * 2000, GUEST, id_set("bob"))


def test_integers_are_compared_as_numbers() -> None:
    body = b'n,guest\n1,7\n2,"007"\n3,+7\n4,-7\n5,\n6,""\n7,18446744073709551615\n8,99999999999999999999999\n'
    made, counts = rewrite(csv, body, GUEST, id_set(7, kind="integer"))
    assert counts == (8, 3)
    assert made.splitlines()[1:4] == [b"4,-7", b"5,", b'6,""']
    with pytest.raises(PurgeError, match="line 3 has no integer in column 'guest'"):
        find(csv, b"n,guest\n1,7\n2,x\n", GUEST, id_set(7, kind="integer"))


def test_an_empty_field_is_null_and_a_quoted_one_is_empty() -> None:
    assert rewrite(csv, b'n,guest\n1,\n2,""\n', GUEST, id_set("", None))[0] == b"n,guest\n1,\n"


def test_columns_are_set_to_null_once() -> None:
    body = b'n,guest,mail\n1,bob,"b@x,y"\n2,ann,a@x\n3,bob,\n'
    what = task("guest", set_null=["mail"])
    made, counts = rewrite(csv, body, what, id_set("bob"))
    assert made == b"n,guest,mail\n1,bob,\n2,ann,a@x\n3,bob,\n"
    assert counts.matched_rows == 1
    assert find(csv, made, what, id_set("bob")).matched_rows == 0
    with pytest.raises(PurgeError, match="the only column"):
        find(csv, b"guest\nbob\n", task("guest", set_null=["guest"]), id_set("bob"))


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0\\\r"), max_size=6)


@settings(max_examples=75, deadline=None)
@given(
    rows=st.lists(st.tuples(CELL, CELL, CELL), max_size=8),
    ids=st.lists(CELL, max_size=4),
    quoting=st.sampled_from([plain.QUOTE_ALL, plain.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_any_table_that_python_writes_loses_the_rows_that_python_finds(
    rows: list[tuple[str, str, str]], ids: list[str], quoting: Any, end: str
) -> None:
    text = io.StringIO(newline="")
    writer = plain.writer(text, quoting=quoting, lineterminator=end)
    writer.writerows([("a", "guest", "b"), *rows])
    made, _ = rewrite(csv, text.getvalue().encode(), GUEST, id_set(*ids))
    left = list(plain.reader(io.StringIO(made.decode(), newline="")))[1:]
    # an empty field is null unless it is quoted
    null = {""} if quoting == plain.QUOTE_MINIMAL else set[str]()
    assert left == [list(row) for row in rows if row[1] not in set(ids) - null]


@pytest.mark.parametrize("name", ["user.id", "No.", "a..b"])
def test_a_column_may_have_dots_in_its_name(name: str) -> None:
    dataset = {"name": "visits", "prefix": "visits/", "format": "csv", "identifier": name, "mode": "rewrite"}
    read_document(json.dumps({"whitelist": ["*"], "datasets": [dataset]}))
    body = f"n,{name}\n1,bob\n2,ann\n".encode()
    assert rewrite(csv, body, task(name), id_set("bob")) == (f"n,{name}\n2,ann\n".encode(), (2, 1))
