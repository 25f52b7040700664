"""Lines of JSON on which a reader could go astray: block borders, odd values, deep nesting, damage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore_purge.formats import compression, json_lines
from refstore_purge.purge_error import PurgeError
from tests.purge import datasets
from tests.purge.looking import find, id_set, rewrite, task

GUEST = task("guest")
TEXT_CODECS: dict[str, Any] = vars(datasets)["TEXT_CODECS"]
PACKED = [name for name in TEXT_CODECS if name != "none"]


pytestmark = pytest.mark.usefixtures("own_temporary_folder")


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


@pytest.mark.parametrize("codec", PACKED)
class TestCompression:
    def test_that_is_cut_off_is_refused(self, codec: str) -> None:
        body = TEXT_CODECS[codec][0](b"".join(b'{"guest":"g%d"}\n' % number for number in range(40)))
        for length in (*range(8, len(body), 7), len(body) - 1):
            with pytest.raises(PurgeError, match="damaged"):
                find(json_lines, body[:length], GUEST, id_set("bob"))

    def test_of_several_parts_is_read_to_its_end(self, codec: str) -> None:
        pack, unpack = TEXT_CODECS[codec]
        made, counts = rewrite(json_lines, pack(b'{"guest":') + pack(b'"bob"}\n{"n":1}'), GUEST, id_set("bob"))
        assert unpack(made) == b'{"n":1}'
        assert counts == (2, 1)


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
