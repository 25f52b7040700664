"""JSON lines: what stays is kept byte for byte, and what is no JSON object is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore_purge.formats import compression, json_lines
from refstore_purge.purge_error import PurgeError
from tests.purge.looking import find, id_set, rewrite, task

pytestmark = pytest.mark.usefixtures("own_temporary_folder")

USER_GUEST = task("user.guest")


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
    assert rewrite(json_lines, body, USER_GUEST, id_set("bob"))[0] == kept


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
        find(json_lines, body, USER_GUEST, id_set("bob"))


def test_a_message_has_no_value() -> None:
    with pytest.raises(PurgeError) as raised:
        find(json_lines, b'{"user":{"guest":1234567}}\n', USER_GUEST, id_set("bob"))
    assert "1234567" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_integers_of_64_bits_with_and_without_sign() -> None:
    numbers = [-(2**63), -1, 0, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**60]
    body = "".join(f'{{"user":{{"guest":{number}}}}}\n' for number in numbers).encode()
    for number in numbers[:6]:
        wanted = id_set(number, kind="integer", type_=None if number < 2**63 else __import__("pyarrow").uint64())
        made, counts = rewrite(json_lines, body, USER_GUEST, wanted)
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
        find(json_lines, b"{}\n", USER_GUEST, id_set(b"bob", kind="binary"))


GUEST = task("guest")
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUE = st.recursive(LEAF, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXT, each, max_size=3))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(["bob", "ann", None, ""]), VALUE), max_size=8),
    block=st.integers(1, 40),
    end=st.sampled_from(["\n", "\r\n"]),
    ascii_=st.booleans(),
)
def test_any_lines_lose_the_rows_that_python_finds_and_only_the_columns_that_go(
    rows: list[tuple[str | None, Any]], block: int, end: str, *, ascii_: bool
) -> None:
    objects = [{"guest": guest, "mail": "x", "rest": rest} for guest, rest in rows]
    lines = [(json.dumps(row, ensure_ascii=ascii_) + end).encode() for row in objects]
    body = b"".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "TEXT_BATCH_BYTES", block)
        made, counts = rewrite(json_lines, body, GUEST, id_set("bob", ""))
        nulled, _ = rewrite(json_lines, body, task("guest", set_null=["mail"]), id_set("bob", ""))
    kept = [line for line, row in zip(lines, objects, strict=True) if row["guest"] not in ("bob", "")]
    assert made == b"".join(kept)
    assert counts == (len(rows), len(rows) - len(kept))
    assert [json.loads(line) for line in nulled.split(b"\n") if line] == [
        {**row, "mail": None} if row["guest"] in ("bob", "") else row for row in objects
    ]


class TestRefusals:
    @pytest.mark.parametrize(
        "line",
        [b"{'guest':'bob'}", b'{"guest":"bob"}x', b'{"guest":"a\tb"}', b'{"guest":"bob",}', b"\xef\xbb\xbf{}", b"\x00"],
    )
    def test_of_what_is_not_json(self, line: bytes) -> None:
        with pytest.raises(PurgeError, match="line 2 is not JSON"):
            find(json_lines, b"{}\n" + line + b"\n", GUEST, id_set("bob"))

    @pytest.mark.parametrize("line", [b"[]", b'"bob"', b"7", b"null", b"true", b'[{"guest":"bob"}]'])
    def test_of_what_is_no_object(self, line: bytes) -> None:
        with pytest.raises(PurgeError, match="line 1 is no JSON object"):
            find(json_lines, line + b"\n", GUEST, id_set("bob"))

    @pytest.mark.parametrize("value", [b'"7"', b"7.0", b"1e3", b"true", b"NaN", b"-Infinity"])
    def test_of_what_is_no_integer(self, value: bytes) -> None:
        with pytest.raises(PurgeError, match=r"line 1 has .* at 'guest', and the ids are integers"):
            find(json_lines, b'{"guest":' + value + b"}\n", GUEST, id_set(7, kind="integer"))

    def test_of_an_array_on_the_way_to_a_column_to_set_to_null_also_where_no_id_is(self) -> None:
        with pytest.raises(PurgeError, match="line 2 has an array on the way to 'age'"):
            find(json_lines, b'{}\n{"u":[]}\n', task("guest", set_null=["u.age"]), id_set("bob"))

    def test_of_a_line_that_is_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compression, "RECORD_BYTES_MAX", 1000)
        with pytest.raises(PurgeError, match="line 1 or one behind it is longer than 64 MiB"):
            find(json_lines, b'{"guest":"' + b"x" * 2000, GUEST, id_set("bob"))

    def test_of_a_line_that_is_nested_too_deep_to_be_written_again(self) -> None:
        body = b'{"guest":"bob","mail":"x","deep":' + b"[" * 600 + b"]" * 600 + b"}\n"
        try:
            made, _ = rewrite(json_lines, body, task("guest", set_null=["mail"]), id_set("bob"))
        except PurgeError:
            return
        assert json.loads(made)["mail"] is None


class TestValues:
    @pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \t\n"])
    def test_blank_lines_stay_and_are_no_rows(self, blank: bytes) -> None:
        body = blank + b'{"guest":"bob"}\n' + blank
        assert rewrite(json_lines, body, GUEST, id_set("bob")) == (blank * 2, (1, 1))

    def test_null_and_what_is_not_there_match_nothing_and_empty_text_matches_itself(self) -> None:
        body = b'{"guest":null}\n{}\n{"guest":[]}\n{"guest":{}}\n'
        assert rewrite(json_lines, body + b'{"guest":""}\n', GUEST, id_set("", None)) == (body, (5, 1))

    def test_a_field_that_is_there_twice_counts_twice_and_is_null_twice(self) -> None:
        body = b'{"guest":"bob","guest":"ann","mail":"a","mail":"b"}\n'
        assert rewrite(json_lines, body, GUEST, id_set("bob"))[1] == (1, 1)
        assert rewrite(json_lines, body, GUEST, id_set("ann"))[1] == (1, 1)
        made, _ = rewrite(json_lines, body, task("guest", set_null=["mail"]), id_set("bob"))
        assert made == b'{"guest":"bob","guest":"ann","mail":null,"mail":null}\n'

    def test_escapes_are_what_they_stand_for(self) -> None:
        body = b'{"gu\\u0065st":"b\\u006fb"}\n{"guest":"\\ud83d\\ude00"}\n{"guest":"\\ud800"}\n'
        made, counts = rewrite(json_lines, body, GUEST, id_set("bob", "\U0001f600"))
        assert counts == (3, 2)
        assert made == b'{"guest":"\\ud800"}\n'

    def test_a_changed_line_keeps_its_bom_its_end_and_the_way_its_numbers_are_written(self) -> None:
        body = b'\xef\xbb\xbf{"guest": "bob", "mail": 1, "n": [1E5, -0, NaN], "s": "\\ud800"}\r\n'
        made, _ = rewrite(json_lines, body, task("guest", set_null=["mail"]), id_set("bob"))
        assert made == b'\xef\xbb\xbf{"guest":"bob","mail":null,"n":[1E5,-0,NaN],"s":"\\ud800"}\r\n'

    def test_a_name_with_a_dot_is_no_way_into_an_object(self) -> None:
        assert find(json_lines, b'{"user.guest":"bob"}\n', task("user.guest"), id_set("bob")).matched_rows == 0
