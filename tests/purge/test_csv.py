"""CSV: what stays is kept byte for byte, and what readers take in different ways is refused."""

from __future__ import annotations

import csv as plain
import io
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.purge_document.document import read_document
from refstore_purge.formats import compression, csv
from refstore_purge.purge_error import PurgeError
from refstore_purge.untyped_pandas import pa
from tests.purge.datasets import TEXT_CODECS
from tests.purge.looking import find, id_set, rewrite, task

pytestmark = pytest.mark.usefixtures("own_temporary_folder")

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


PACKED = [name for name in TEXT_CODECS if name != "none"]


QUOTED_CELL = st.text(st.sampled_from('ab",\n '), max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(QUOTED_CELL, QUOTED_CELL), max_size=8),
    block=st.integers(1, 9),
    quoting=st.sampled_from([plain.QUOTE_ALL, plain.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
    set_null=st.booleans(),
)
def test_borders_of_blocks_change_nothing(
    rows: list[tuple[str, str]], block: int, quoting: Any, end: str, *, set_null: bool
) -> None:
    text = io.StringIO(newline="")
    plain.writer(text, quoting=quoting, lineterminator=end).writerows([("guest", "b"), *rows])
    body = text.getvalue().encode()
    what = task("guest", set_null=["b"] if set_null else [])
    wanted = id_set("a", "b", "a,b", "\n")
    whole = rewrite(csv, body, what, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "TEXT_BATCH_BYTES", block)
        assert rewrite(csv, body, what, wanted) == whole


@pytest.mark.parametrize("codec", PACKED)
class TestCompression:
    def test_of_several_parts_is_read_to_its_end(self, codec: str) -> None:
        pack, unpack = TEXT_CODECS[codec]
        made, counts = rewrite(csv, pack(b"n,guest\n1,bob\n2,a") + pack(b"nn\n3,bob\n"), GUEST, id_set("bob"))
        assert unpack(made) == b"n,guest\n2,ann\n"
        assert counts == (3, 2)

    def test_of_no_text_stays_that(self, codec: str) -> None:
        pack, unpack = TEXT_CODECS[codec]
        made, counts = rewrite(csv, pack(b""), GUEST, id_set("bob"))
        assert unpack(made) == b""
        assert compression.detect_codec(io.BytesIO(made)) == codec
        assert counts == (0, 0)

    def test_that_is_cut_off_anywhere_is_refused(self, codec: str) -> None:
        body = TEXT_CODECS[codec][0](b"n,guest\n" + b"".join(b"%d,g%d\n" % (n, n) for n in range(40)))
        for length in (*range(8, len(body), 7), len(body) - 1):
            with pytest.raises(PurgeError, match="damaged"):
                find(csv, body[:length], GUEST, id_set("g1"))

    def test_whose_second_part_is_damaged_is_refused(self, codec: str) -> None:
        """Programs that compress on all cores write such parts: pbzip2, pixz. Its rows may have the ids."""
        pack = TEXT_CODECS[codec][0]
        second = bytearray(pack(b"2,bob\n3,ann\n" * 50))
        second[2] ^= 0xFF  # magic, version or method
        with pytest.raises(PurgeError, match="damaged"):
            find(csv, pack(b"n,guest\n1,ann\n") + bytes(second), GUEST, id_set("bob"))

    def test_is_the_same_whenever_it_is_made(self, codec: str) -> None:
        body = TEXT_CODECS[codec][0](b"n,guest\n1,bob\n2,ann\n")
        assert rewrite(csv, body, GUEST, id_set("bob"))[0] == rewrite(csv, body, GUEST, id_set("bob"))[0]


def _hadoop(codec: str) -> Callable[[bytes], bytes]:
    """Return what compresses as Hadoop does, and so Spark: a block with both lengths before it."""

    def pack(text: bytes) -> bytes:
        packed = pa.compress(text, codec=codec, asbytes=True)
        return struct.pack(">II", len(text), len(packed)) + packed

    return pack


def _lz4_frame(text: bytes) -> bytes:
    return pa.compress(text, codec="lz4", asbytes=True)


def _utf_16(text: bytes) -> bytes:
    return text.decode().encode("utf-16")


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(_hadoop("snappy"), id="snappy"),
        pytest.param(_hadoop("lz4_raw"), id="lz4"),
        pytest.param(_lz4_frame, id="lz4-frame"),
        pytest.param(_utf_16, id="utf-16"),
    ],
)
def test_a_compression_or_encoding_that_is_not_known_is_refused(pack: Any) -> None:
    """Of a small file they may hold the text as it is, and then rows could be cut out of their middle."""
    with pytest.raises(PurgeError):
        rewrite(csv, pack(b"n,guest\n1,bob\n2,ann\n"), GUEST, id_set("bob"))


class TestRefusals:
    def test_of_binary_ids(self) -> None:
        with pytest.raises(PurgeError, match="CSV has no binary values"):
            find(csv, b"n,guest\n1,bob\n", GUEST, id_set(b"bob", kind="binary"))

    @pytest.mark.parametrize(
        ("body", "told"),
        [
            (b"n,guest\n1,bob\n", "there is no column 'mail' in the header; correct set_null"),
            (b"mail,guest,mail\n1,bob,2\n", "there is more than one column 'mail' in the header; correct set_null"),
        ],
    )
    def test_of_a_column_to_set_to_null(self, body: bytes, told: str) -> None:
        with pytest.raises(PurgeError, match=told):
            find(csv, body, task("guest", set_null=["mail"]), id_set("bob"))

    @pytest.mark.parametrize("value", [b"7.0", b" 7", b"7 ", b"0x7", b"1e3", b"\xd9\xa7", b"-", b"true"])
    def test_of_what_is_no_integer(self, value: bytes) -> None:
        with pytest.raises(PurgeError, match="line 2 has no integer in column 'guest'"):
            find(csv, b"n,guest\n1," + value + b"\n", GUEST, id_set(7, kind="integer"))

    def test_names_the_line_also_behind_quoted_line_ends_and_other_blocks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compression, "TEXT_BATCH_BYTES", 16)
        body = b'n,guest\n"a\nb\nc",x\n' + b"1,ann\n" * 20 + b"1,2,3\n"
        with pytest.raises(PurgeError, match="line 25 has 3 fields"):
            find(csv, body, GUEST, id_set("bob"))

    def test_tells_no_value(self) -> None:
        for body in (b"n,guest\nsecret-7,a,b\n", b'n,guest\n"secret-7\n', b"n,guest\n1,secret-\xff7\n"):
            with pytest.raises(PurgeError) as raised:
                find(csv, body, GUEST, id_set("bob"))
            assert "secret" not in str(raised.value)
            assert raised.value.__cause__ is None

    def test_of_a_carriage_return_alone_at_the_end(self) -> None:
        with pytest.raises(PurgeError, match="line 3 has"):
            find(csv, b"n,guest\n1,bob\n\r", GUEST, id_set("bob"))


class TestValues:
    def test_integers_without_sign_of_64_bits(self) -> None:
        body = (
            b"n,guest\n1,18446744073709551615\n2,9223372036854775808\n3,18446744073709551616\n4,-9223372036854775808\n"
        )
        for line, number in enumerate((2**64 - 1, 2**63), start=1):
            wanted = id_set(number, kind="integer", type_=pa.uint64())
            made, counts = rewrite(csv, body, GUEST, wanted)
            assert counts == (4, 1)
            assert made.splitlines() == [each for at, each in enumerate(body.splitlines()) if at != line]

    def test_strings_are_compared_as_they_stand(self) -> None:
        body = b"n,guest\n1,007\n2,7\n3, 7\n4,+7\n"
        assert rewrite(csv, body, GUEST, id_set("7"))[0] == b"n,guest\n1,007\n3, 7\n4,+7\n"

    def test_other_columns_need_not_be_utf_8(self) -> None:
        assert rewrite(csv, b"n,guest\n\xe4,bob\n\xe4,ann\n", GUEST, id_set("bob"))[0] == b"n,guest\n\xe4,ann\n"

    def test_a_null_in_the_last_column_keeps_the_line_end(self) -> None:
        body = b'guest,mail\r\nbob,"a\r\nb"\r\nbob,x'
        what = task("guest", set_null=["mail"])
        assert rewrite(csv, body, what, id_set("bob")) == (b"guest,mail\r\nbob,\r\nbob,", (2, 2))

    def test_a_name_in_the_header_may_have_a_dot_a_comma_or_quotes(self) -> None:
        body = b'"a,""b""",user.guest\n1,bob\n'
        assert rewrite(csv, body, task("user.guest"), id_set("bob"))[1] == (1, 1)
        assert find(csv, b'n,"a,""b"""\n1,bob\n', task('a,"b"'), id_set("bob")).matched_rows == 1
