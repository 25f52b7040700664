"""The file of ids: its plain form is read, and all else is refused with the line and without a word about an id."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refstore.errors import Invalid
from refstore_purge.ids_file import BATCH_ROWS, IdsFile, load_ids
from refstore_purge.purge_ids import IdSet
from refstore_purge.untyped_pandas import pa, pq

ANN = "550e8400-e29b-41d4-a716-446655440000"
DIGITS = "4711" * 7
"""An integer of more than 64 bits."""
SECRETS = ("secret", "4711", "446655440000")
DATASETS = {"dataset_column": "d", "datasets": ["a", "b", "c"]}


class Loaded:
    def __init__(self, folder: Path, body: Any, **options: Any) -> None:
        """Load a file of these bytes, or of Parquet with these columns."""
        file = folder / "forget"
        if isinstance(body, bytes):
            file.write_bytes(body)
        else:
            pq.write_table(pa.table(body), file)
        of_load = {key: options.pop(key) for key in ("id_type", "datasets") if key in options}
        read = load_ids(IdsFile(file, **options), folder / "sets", **of_load)
        self.text, self.kinds = read.text, dict[str, str]()
        self.ids: dict[str, list[Any]] = {}
        for dataset, prefix in read.sets.items():
            ids = IdSet(folder / "sets", prefix=prefix)
            self.kinds[dataset] = ids.kind
            self.ids[dataset] = sorted(ids.values.to_pylist())
        assert self.text.startswith(f"{sum(map(len, self.ids.values()))} value")


Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return partial(Loaded, tmp_path)


def refusal(load: Load, body: Any, **options: Any) -> str:
    with pytest.raises(Invalid) as raised:
        load(body, **options)
    told = str(raised.value)
    opened = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if path.endswith("/forget")]
    assert not any(secret in told for secret in SECRETS), told
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    return told


class TestCsv:
    @pytest.mark.parametrize(
        ("text", "options", "expected"),
        [
            (b"id\na\nb\na\n", {}, [b"a", b"b"]),
            (b"id\r\na\r\n\r\nb", {}, [b"a", b"b"]),
            (b"\xef\xbb\xbfid\n007\n7\n", {}, [b"007", b"7"]),
            (b'id\n"a\nb"\n"x,""y"""\n', {}, [b"a\nb", b'x,"y"']),
            (b"id\nNA\nnull\nNaN\n 1\n", {}, [b" 1", b"NA", b"NaN", b"null"]),
            ("id\ngröße\n".encode(), {}, ["größe".encode()]),
            (b"name,guestid\n,4711\nx,4712\n", {"column": "guestid"}, [b"4711", b"4712"]),
            (b"4711,x\n4712,y\n", {"column": "4711"}, [b"4712"]),
            (b"n;id\nx,y;7\n", {"column": "id", "delimiter": ";"}, [b"7"]),
            (b"n\tid\n\t7\n", {"column": "id", "delimiter": r"\t"}, [b"7"]),
            (b"4711\n\n4712", {"has_header": False}, [b"4711", b"4712"]),
            (b"\xef\xbb\xbf{550e}\nid\n", {"has_header": False}, [b"id", b"{550e}"]),
            (b'"a,b"\n"x""y"\n', {"has_header": False}, [b"a,b", b'x"y']),
            (b"a,b\n", {"has_header": False, "delimiter": "|"}, [b"a,b"]),
        ],
    )
    def test_has_text(self, load: Load, text: bytes, options: dict[str, Any], expected: list[bytes]) -> None:
        loaded = load(text, **options)
        assert (loaded.kinds, loaded.ids) == ({"": "string"}, {"": expected})

    def test_of_more_than_a_batch_is_read_whole(self, load: Load) -> None:
        loaded = load(b"id\n" + b"".join(b"%d\n" % number for number in range(2 * BATCH_ROWS + 1)))
        assert loaded.text == f"{2 * BATCH_ROWS + 1} values, text"

    @pytest.mark.parametrize(
        ("text", "options", "told"),
        [
            (
                b"4711\n4712\n",
                {},
                "line 1 of forget is no header with the one column 'id'; say which column has the ids ",
            ),
            (b"secret\nann\n", {}, "--id-column, or --no-header if each line is an id"),
            (b"\nid\nann\n", {}, "line 1 of forget is no header"),
            (b"", {}, "line 1 of forget is no header"),
            (b"id,secret\n1,2\n", {}, "line 1 of forget is no header with the one column 'id'; say"),
            (b"secret,b\n1,2\n", {"column": "c"}, "line 1 of forget has no column 'c'; name one as it stands there"),
            (b"id;secret\n1;2\n", {"column": "id"}, "separated by ',', or by what --delimiter says"),
            (b"id,id\n1,2\n", {"column": "id"}, "line 1 of forget has more than one column 'id'"),
            (b"id\n1\n\nsecret,2\n", {}, "line 4 of forget has 2 fields instead of 1; put quotes around a value that"),
            (b"n,id\nsecret\n", {"column": "id"}, "line 2 of forget has 1 fields instead of 2"),
            (b"secret,4711\n", {"has_header": False}, "line 1 of forget has 2 fields instead of 1"),
            (b'id\n1\n"secret\n4711\n', {}, "line 3 of forget is no CSV: a quote is not closed"),
            (b'id\n1\n"secret"4711\n', {}, "line 3 of forget is no CSV"),
            (b"id\nsecret\r4711\r", {}, "line 2 of forget is no CSV"),
            ("id\n1\nsecret-größe\n".encode("latin-1"), {}, "line 3 of forget is no text in UTF-8; unpack"),
            ("id\nsecret\n".encode("utf-16"), {}, "line 1 of forget is no text in UTF-8"),
            ("id\nsecret\n".encode("utf-16-le"), {}, "line 1 of forget is no text in UTF-8"),
            (gzip.compress(b"id\nsecret\n", mtime=0), {}, "line 1 of forget is no text in UTF-8; unpack the file"),
            (b"id\n", {}, "forget has no ids; give a file that has some"),
            (b"\n", {"has_header": False}, "forget has no ids"),
            (b"id\n1\n", {"delimiter": "||"}, r"--delimiter is one character, or \t for a tab"),
            (b"id\n1\n", {"id_type": "text"}, "'text' is no type of ids; use string, integer, binary, uuid"),
            (b"4711\n", {"has_header": False, "column": "2"}, "leave --id-column and --dataset-column out"),
            (b"4711\n", {"has_header": False, "dataset_column": "1"}, "leave --id-column and --dataset-column out"),
            ({"id": ["secret"]}, {"has_header": False}, "forget is not one id a line; leave --no-header out"),
            (b'{"id": "secret"}\n', {"has_header": False}, "forget is not one id a line; leave --no-header out"),
        ],
    )
    def test_in_another_form_is_refused(self, load: Load, text: Any, options: dict[str, Any], told: str) -> None:
        assert told in refusal(load, text, **options)

    def test_with_a_value_beyond_the_limit_is_refused_whatever_limit_the_process_has(
        self, load: Load, request: pytest.FixtureRequest
    ) -> None:
        request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit()))
        for limit in (128 * 1024, 64 * 1024 * 1024):
            csv.field_size_limit(limit)
            assert "line 3 of forget is no CSV" in refusal(load, b"id\n1\n" + b"secret" * 30_000)

    def test_of_a_folder_or_nothing_is_refused(self, tmp_path: Path) -> None:
        for name, reason in (("", "Is a directory"), ("gone", "No such file")):
            with pytest.raises(Invalid, match=f"cannot be read: {reason}"):
                load_ids(IdsFile(tmp_path / name), tmp_path / "sets")


class TestParquet:
    @pytest.mark.parametrize(
        ("values", "kind", "expected"),
        [
            (pa.array(["b", None, "a", "b"]), "string", [b"a", b"b"]),
            (pa.array(["a", "b" * 30], pa.string_view()), "string", [b"a", b"b" * 30]),
            (pa.array(["a", None, "a"]).dictionary_encode(), "string", [b"a"]),
            (pa.array([3, -1, None], pa.int8()), "integer", [Decimal(-1), Decimal(3)]),
            (pa.array([2**64 - 1], pa.uint64()), "integer", [Decimal(2**64 - 1)]),
            (pa.array([b"\xff", b""]), "binary", [b"\xff"]),
            (pa.array([b"ab"], pa.binary(2)), "binary", [b"ab"]),
            (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))), "binary", [b"x" * 16]),
        ],
    )
    def test_has_its_own_types(self, load: Load, values: Any, kind: str, expected: list[Any]) -> None:
        loaded = load({"n": range(len(values)), "id": values}, column="id")
        assert (loaded.kinds, loaded.ids) == ({"": kind}, {"": expected})

    def test_of_many_row_groups_is_read_whole(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"id": range(1000)}), tmp_path / "ids", row_group_size=10)
        assert load_ids(IdsFile(tmp_path / "ids"), tmp_path / "sets").text == "1000 values, integers"

    def test_a_column_whose_name_has_a_dot_is_not_taken_for_a_field_of_a_struct(self, load: Load) -> None:
        assert load({"a": pa.array([{"b": "wrong"}]), "a.b": ["right"]}, column="a.b").ids == {"": [b"right"]}

    @pytest.mark.parametrize("values", [[True], [1.5], [{"secret": 1}], [["a"]], [Decimal(1)]])
    def test_of_other_types_is_refused(self, load: Load, values: list[Any]) -> None:
        assert "ids are strings, integers or binary" in refusal(load, {"id": values})

    def test_without_the_column_is_refused_with_those_that_there_are(self, load: Load) -> None:
        assert "no header with the one column 'id' (there are: a, b)" in refusal(load, {"a": [1], "b": [2]})
        assert "no column 'c' (there are: a, b)" in refusal(load, {"a": [1], "b": [2]}, column="c")

    def test_that_is_damaged_is_refused(self, load: Load, tmp_path: Path) -> None:
        file = tmp_path / "ids.parquet"
        table = pa.table({"id": [f"secret-{number}" for number in range(99)]})
        pq.write_table(table, file, compression="snappy", use_dictionary=False)
        body = file.read_bytes()
        for damaged in (body[:30] + b"\xff" * 470 + body[500:], b"PAR1"):
            assert "the ids of forget cannot be read: it is damaged" in refusal(load, damaged)


class TestJsonLines:
    def test_have_text_or_integers(self, load: Load) -> None:
        loaded = load(b'\xef\xbb\xbf{"id": "4711"}\n\n{"id": null}\n{"id": "b"}')
        assert (loaded.ids, loaded.text) == ({"": [b"4711", b"b"]}, "2 values, text")
        loaded = load(b'{"id": -1, "n": 0}\n{"n": [], "id": 18446744073709551615}\n', column="id")
        assert (loaded.ids, loaded.text) == ({"": [-1, 2**64 - 1]}, "2 values, integers")

    @pytest.mark.parametrize(
        ("text", "options", "told"),
        [
            (b'{"id": "secret"}\nsecret\n', {}, "line 2 of forget is no JSON object; write one object a line"),
            (b'{"id": "secret",\n"n": 1}\n', {}, "line 1 of forget is no JSON object"),
            (b'{"id": "secret"}\n{"name": "secret"}\n', {}, "line 2 of forget has no field of the name"),
            (b'{"name": "secret", "id": 7}\n', {}, "line 1 of forget is no header with the one column 'id'"),
            (b'{"id": true}\n', {}, "line 1 of forget has neither text nor an integer"),
            (b'{"id": {"secret": 1}}\n', {}, "line 1 of forget has neither text nor an integer"),
            (b'{"id": 1}\n{"id": 4711.5}\n', {}, "line 2 of forget has neither text nor an integer"),
            (
                b'{"id": %s}\n' % DIGITS.encode(),
                {},
                "line 1 of forget has an integer of more than 64 bits; write it as",
            ),
            (b'{"id": "secret"}\n{"id": 4711}\n', {}, "text and integers as ids; write one of the two"),
            (b'{"id": "\\ud800secret"}\n', {}, "cannot be read"),
            (b'{"id": "secret\xff"}\n', {}, "line 1 of forget is no text in UTF-8"),
            (b'[{"id": "secret"}]\n', {"column": "id"}, "line 1 of forget"),
        ],
    )
    def test_in_another_form_are_refused(self, load: Load, text: bytes, options: dict[str, Any], told: str) -> None:
        assert told in refusal(load, text, **options)

    def test_of_text_and_integers_are_compared_as_told(self, load: Load) -> None:
        text = b'{"id": "7"}\n{"id": 8}\n'
        assert load(text, id_type="integer").ids == {"": [7, 8]}
        assert load(text, id_type="string").ids == {"": [b"7", b"8"]}
        assert load(f'{{"id": {DIGITS}}}\n'.encode(), id_type="string").ids == {"": [DIGITS.encode()]}


class TestTypes:
    @pytest.mark.parametrize(
        ("body", "id_type", "expected"),
        [
            ({"id": ["7", "-8", None]}, "integer", [-8, 7]),
            ({"id": pa.array(["7", "8"]).dictionary_encode()}, "integer", [7, 8]),
            ({"id": [b"7"]}, "integer", [7]),
            (b"id\n18446744073709551615\n-1\n", "integer", [-1, 2**64 - 1]),
            (b"id\n+7\n0000000000000000000000000008\n", "integer", [7, 8]),
            ({"id": [7, None]}, "string", [b"7"]),
            ({"id": pa.array([2**64 - 1], pa.uint64())}, "string", [b"18446744073709551615"]),
            ({"id": pa.array([b"ab"], pa.binary(2))}, "string", [b"ab"]),
            ({"id": ["ä"]}, "binary", ["ä".encode()]),
            ({"id": [7]}, "binary", [b"7"]),
            ({"id": [b"x" * 16]}, "uuid", [b"x" * 16]),
            *(
                ({"id": [text, None]}, "uuid", [bytes.fromhex(ANN.replace("-", ""))])
                for text in (ANN, ANN.upper(), ANN.replace("-", ""), f"{{{ANN}}}", f"urn:uuid:{ANN}", f"URN:UUID:{ANN}")
            ),
        ],
    )
    def test_are_compared_as_told(self, load: Load, body: Any, id_type: str, expected: list[Any]) -> None:
        loaded = load(body, id_type=id_type)
        assert (loaded.kinds[""], loaded.ids[""]) == ("binary" if id_type == "uuid" else id_type, expected)

    @pytest.mark.parametrize(
        ("body", "id_type"),
        [
            *((b"id\n1\n" + text + b"\n", "integer") for text in (b"secret", b"0x10", b"1.0", b"1e3", b" 1")),
            (f"id\n1\n{DIGITS}\n".encode(), "integer"),
            (b"id\n1\n18446744073709551616\n", "integer"),
            (b"id\n1\n-9223372036854775809\n", "integer"),
            ({"id": [b"x", b"secret\xff"]}, "string"),
            ({"id": [ANN, None, "secret"]}, "uuid"),
            ({"id": [ANN, ANN + "0"]}, "uuid"),
            ({"id": [b"x" * 16, b"secret"]}, "uuid"),
            ({"id": [4711]}, "uuid"),
        ],
    )
    def test_that_an_id_has_not_are_refused(self, load: Load, body: Any, id_type: str) -> None:
        line = 3 if isinstance(body, bytes) else len(body["id"])
        told = f"line {line} of forget has an id that is no {id_type}; correct it, or --id-type"
        assert told in refusal(load, body, id_type=id_type)


class TestEmptyIds:
    @pytest.mark.parametrize(
        "body",
        [
            b'id\n""\nx\n',
            b'n,id\n1,""\n2,x\n',
            b"n,id\n1,\n2,x\n",
            b'{"id": ""}\n{"id": "x"}\n',
            {"id": ["", "x", None]},
            {"id": pa.array(["", "x"]).dictionary_encode()},
            {"id": pa.array(["", "x"], pa.string_view())},
            {"id": [b"", b"x"]},
        ],
    )
    def test_are_ids_only_if_they_are_wanted(self, load: Load, body: Any) -> None:
        loaded = load(body, column="id")
        assert loaded.ids == {"": [b"x"]}
        assert "1 empty values are left out, --empty-id takes them" in loaded.text
        assert load(body, column="id", takes_empty_id=True).ids == {"": [b"", b"x"]}

    def test_alone_are_no_ids(self, load: Load) -> None:
        assert "no ids, but 2 empty values, which --empty-id" in refusal(load, b'id\n""\n""\n')
        assert load(b'id\n""\n""\n', takes_empty_id=True).ids == {"": [b""]}
        assert "has no ids;" in refusal(load, {"id": pa.array([None, None], pa.string())})


class TestDatasets:
    @pytest.mark.parametrize(
        "body",
        [
            b"d,id\na,7\nb,8\na,9\n",
            b'{"d": "a", "id": "7"}\n{"id": "8", "d": "b"}\n{"d": "a", "id": "9"}\n',
            {"d": pa.array(["a", "b", "a"]).dictionary_encode(), "id": ["7", "8", "9"]},
        ],
    )
    def test_have_ids_of_their_own(self, load: Load, body: Any) -> None:
        loaded = load(body, **DATASETS)
        assert loaded.ids == {"a": [b"7", b"9"], "b": [b"8"]}
        assert loaded.text == "3 values, text; for a, b"

    def test_may_have_different_types(self, load: Load) -> None:
        loaded = load(b'{"d": "a", "id": 7}\n{"d": "b", "id": "7"}\n', **DATASETS)
        assert loaded.kinds == {"a": "integer", "b": "string"}

    @pytest.mark.parametrize(
        ("body", "options", "told"),
        [
            (b"d,id\na,2\nsecret,1\n", {}, "line 3 of forget names no onboarded data set in 'd'; name one of: a, b, c"),
            (b"d,id\na,2\n,1\n", {}, "line 3 of forget names no onboarded data set"),
            (b'{"d": null, "id": 1}\n', {}, "line 1 of forget names no onboarded data set"),
            (b'{"d": "a", "id": 1}\n{"id": 1}\n', {}, "line 2 of forget names no onboarded data set"),
            ({"d": ["a", None], "id": [1, 2]}, {}, "line 2 of forget names no onboarded data set"),
            ({"d": [4711], "id": [1]}, {}, "line 1 of forget names no onboarded data set"),
            (b"x,id\na,1\n", {"column": "id"}, "no column 'd'"),
            (b"d,id\na,1\n", {"column": "d"}, "name the same column"),
            (b"d,id,n\na,1,1\n", {}, "no header with the one column 'id'"),
        ],
    )
    def test_that_are_not_clear_are_refused(self, load: Load, body: Any, options: dict[str, str], told: str) -> None:
        assert told in refusal(load, body, **DATASETS, **options)
