"""JSON lines: what stays is kept byte for byte, and what is no JSON object is refused."""

from __future__ import annotations

import io
import json

import pytest

from refstore_purge.formats import compression, json_lines
from refstore_purge.purge_error import PurgeError
from tests.purge.datasets import TEXT_CODECS
from tests.purge.looking import find, id_set, rewrite, task

GUEST = task("user.guest")


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b'{"user":{"guest":"bob"}}\n{"user": {"guest": "ann"}}\n', b'{"user": {"guest": "ann"}}\n'),
        (b'{"user":{"guest":"bob"}}\r\n{ "user":{"guest":"ann" }}\r\n', b'{ "user":{"guest":"ann" }}\r\n'),
        (
            b'\xef\xbb\xbf{"user":{"guest":"ann"}}\n\n{"user":{"guest":"bob"}}',
            b'\xef\xbb\xbf{"user":{"guest":"ann"}}\n\n',
        ),
        (b'{"user":{"guest":"b\\u006fb"}}\n{"n":1.50e2}\n', b'{"n":1.50e2}\n'),
        (b'{"user":[{"guest":["x","bob"]}]}\n{"user":null}\n{"user":7}\n', b'{"user":null}\n{"user":7}\n'),
        (b'{"user":{"guest":"ann"},"user":{"guest":"bob"}}\n', b""),
        (b'{"user":{"guest":"ann\xe2\x80\xa8"}}\n', b'{"user":{"guest":"ann\xe2\x80\xa8"}}\n'),
        (b"", b""),
    ],
)
def test_lines_that_stay_are_kept_byte_for_byte(body: bytes, kept: bytes) -> None:
    assert rewrite(json_lines, body, GUEST, id_set("bob"))[0] == kept


@pytest.mark.parametrize("codec", TEXT_CODECS)
def test_a_file_stays_compressed_as_it_was(codec: str) -> None:
    pack, unpack = TEXT_CODECS[codec]
    made, counts = rewrite(json_lines, pack(b'{"user":{"guest":"bob"}}\n{"n":1}\n'), GUEST, id_set("bob"))
    assert unpack(made) == b'{"n":1}\n'
    assert compression.detect_codec(io.BytesIO(made)) == codec
    assert counts == (2, 1)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"n":1}\n{"n":\n', "line 2 is not JSON"),
        (b'{"n":1}\n\n[1]\n', "line 3 is no JSON object"),
        (b'{"n":"\xff"}\n', "line 1 is not JSON"),
        (b'{"user":{"guest":7}}\n', "line 1 has an integer at 'user.guest', and the ids are strings"),
        (b'{"user":{"guest":true}}\n', "line 1 has true or false"),
        (b'{"user":{"guest":1.5}}\n', "line 1 has a number"),
        (b"[" * 100_000 + b"\n", "line 1 is nested too deep"),
    ],
)
def test_what_nobody_can_judge_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(PurgeError, match=told):
        find(json_lines, body, GUEST, id_set("bob"))


def test_a_message_has_no_value() -> None:
    with pytest.raises(PurgeError) as raised:
        find(json_lines, b'{"user":{"guest":1234567}}\n', GUEST, id_set("bob"))
    assert "1234567" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_integers_of_64_bits_with_and_without_sign() -> None:
    numbers = [-(2**63), -1, 0, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**60]
    body = "".join(f'{{"user":{{"guest":{number}}}}}\n' for number in numbers).encode()
    for number in numbers[:6]:
        wanted = id_set(number, kind="integer", type_=None if number < 2**63 else __import__("pyarrow").uint64())
        made, counts = rewrite(json_lines, body, GUEST, wanted)
        assert counts.matched_rows == 1
        assert [json.loads(line)["user"]["guest"] for line in made.splitlines()] == [
            each for each in numbers if each != number
        ]


def test_keys_and_values_of_an_object_as_a_map() -> None:
    body = b'{"seen":{"bob":1}}\n{"seen":{"ann":2}}\n'
    assert rewrite(json_lines, body, task("seen", map_part="key"), id_set("bob"))[0] == b'{"seen":{"ann":2}}\n'
    assert rewrite(json_lines, body, task("seen"), id_set(1, kind="integer"))[0] == b'{"seen":{"ann":2}}\n'


def test_columns_are_set_to_null_once_and_the_rest_of_the_line_keeps_its_values() -> None:
    what = task("user.guest", set_null=["mail", "user.age"])
    body = b'{"user":{"guest":"bob","age":7},"mail":"b@x","n":1.50,"big":12345678901234567890123,"t":"\xc3\xa4"}\n'
    made, _ = rewrite(json_lines, body, what, id_set("bob"))
    assert made == (
        b'{"user":{"guest":"bob","age":null},"mail":null,"n":1.50,"big":12345678901234567890123,"t":"\xc3\xa4"}\n'
    )
    assert find(json_lines, made, what, id_set("bob")).matched_rows == 0
    with pytest.raises(PurgeError, match="line 1 has an array on the way to 'age'"):
        find(json_lines, b'{"user":[{"guest":"bob","age":7}]}\n', what, id_set("bob"))


def test_binary_ids_are_refused() -> None:
    with pytest.raises(PurgeError, match="no binary values"):
        find(json_lines, b"{}\n", GUEST, id_set(b"bob", kind="binary"))
