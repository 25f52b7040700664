"""Files of CSV on which a reader could go astray: block borders, compressions in several parts, and bytes of others."""

from __future__ import annotations

import csv as plain
import io
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore_purge.formats import compression, csv
from refstore_purge.purge_error import PurgeError
from refstore_purge.untyped_pandas import pa
from tests.purge import datasets
from tests.purge.looking import find, id_set, rewrite, task

GUEST = task("guest")
TEXT_CODECS: dict[str, Any] = vars(datasets)["TEXT_CODECS"]
PACKED = [name for name in TEXT_CODECS if name != "none"]


pytestmark = pytest.mark.usefixtures("own_temporary_folder")


CELL = st.text(st.sampled_from('ab",\n '), max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(CELL, CELL), max_size=8),
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
