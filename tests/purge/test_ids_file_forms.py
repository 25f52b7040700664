"""The forms that a table of ids comes in: each is told apart, or refused with what was read and without a value."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest

from refstore.errors import Invalid
from refstore_purge import ids_file
from refstore_purge.ids_form import IdsFormOptions
from refstore_purge.purge_ids import IdSet
from refstore_purge.untyped_pandas import pa, pq

ANN, BOB = "550e8400-e29b-41d4-a716-446655440000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
SECRETS = ("secret", "4711", "446655440000", "bob@example.org")


class Loaded:
    def __init__(self, folder: Path, body: Any, *, name: str = "forget.csv", **options: Any) -> None:
        """Load a file of these bytes, or of Parquet with these columns."""
        file = folder / name
        if isinstance(body, bytes):
            file.write_bytes(body)
        else:
            pq.write_table(pa.table(body), file)
        of_load = {key: options.pop(key) for key in ("id_type", "empty_id", "datasets") if key in options}
        read = ids_file.load_ids(file, folder / "sets", form=IdsFormOptions(**options), **of_load)
        self.text, self.kinds = read.text, dict[str, str]()
        self.ids: dict[str, list[Any]] = {}
        for dataset, prefix in read.sets.items():
            ids = IdSet(folder / "sets", prefix=prefix)
            self.kinds[dataset] = ids.kind
            values = ids.values.to_pylist()
            self.ids[dataset] = sorted(
                value.decode(errors="replace") if isinstance(value, bytes) else int(value) for value in values
            )


def refusal(folder: Path, body: Any, **options: Any) -> str:
    with pytest.raises(Invalid) as raised:
        Loaded(folder, body, **options)
    told = str(raised.value)
    assert not any(secret in told for secret in SECRETS), told
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    return told


class TestHeaders:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (b"guestid\n4711\n4712\n", "1 column 'guestid', 2 values, text"),
            (b"Our guest-id\nann\nbob\n", "1 column 'Our guest-id', 2 values, text"),
            (b"user_id\nann\nbob\n", "1 column 'user_id', 2 values, text"),
            (b"customerId\nann\n", "1 column 'customerId', 1 value, text"),
            (b"E-Mail\r\nann@example.org\r\n", "1 column 'E-Mail', 1 value, text"),
            (b"visitor\n4711\n4712\n", "1 column (the first line is the header), 2 values, text"),
            (b"Besucher Nr\n4711\n", "1 column (the first line is the header), 1 value, text"),
            (b"visitor\nguest-1\nguest-20\n", "1 column (the first line is the header), 2 values, text"),
            (f"visitor\n{ANN}\n{BOB.upper()}\n".encode(), "1 column (the first line is the header), 2 values, text"),
            (b"\n\n\r\nid\n4711\n", "1 column 'id', 1 value, text"),
        ],
    )
    def test_that_are_known_or_no_ids_are_taken(self, tmp_path: Path, text: bytes, shown: str) -> None:
        loaded = Loaded(tmp_path, text)
        assert loaded.text == shown
        assert loaded.ids[""] == sorted(text.decode().strip().splitlines()[1:])

    @pytest.mark.parametrize(
        "text",
        [
            b"4711\n4712\n4713\n",
            f"{ANN}\n{BOB}\n".encode(),
            b"bob@example.org\nann@example.org\n",
            b"secret\nann\ncid\n",
            b"secret@example.id\nann@example.org\n",
            b"secret.id\nann.org\n",
            b"secret-1\nann-2\n",
            b"secret\nann\n4712\n",
            b"secret-7a\nsecret-7b\n",
            b"cafebabe\ndeadbeef\n",
            b"secret;x\n1\n",
            b"4711\n",
            b"secret\n",
        ],
    )
    def test_that_may_be_an_id_are_refused(self, tmp_path: Path, text: bytes) -> None:
        told = refusal(tmp_path, text)
        lines = len(text.split())
        assert f"(read: 1 column, {lines} value{'s' * (lines != 1)}, text)" in told
        assert "--no-header" in told
        assert "--id-column" in told
        loaded = Loaded(tmp_path, text, has_header=False)
        assert loaded.ids == {"": sorted(text.decode().split())}
        assert "1 column (no header)" in loaded.text

    def test_that_look_like_ids_are_confirmed_by_name(self, tmp_path: Path) -> None:
        assert Loaded(tmp_path, b"4711\n4712\n", column="4711").ids == {"": ["4712"]}
        assert "no column 'guestid'" in refusal(tmp_path, b"4711\n4712\n", column="guestid")
        told = refusal(tmp_path, b"GuestId\n4712\n", column="guestid")
        assert "no column 'guestid', but 'GuestId'" in told

    def test_and_values_may_have_line_breaks(self, tmp_path: Path) -> None:
        text = b'"gu\nest"\n' + b'"47\n11"\n' * 300_000 + b"4712\n"  # more than a block of Arrow's
        assert Loaded(tmp_path, text, column="gu\nest").ids == {"": ["47\n11", "4712"]}

    @pytest.mark.parametrize("text", [b'id\n"secret\n4711\n4712\n', b'id\n"a"\n"4711\n', b'id\n4711"\n'])
    def test_above_a_quote_that_is_not_closed_are_refused(self, tmp_path: Path, text: bytes) -> None:
        assert "has an odd number of quotes" in refusal(tmp_path, text)

    def test_that_a_data_set_names_are_known(self, tmp_path: Path) -> None:
        text = b"guest\nann\nbob\n"
        assert Loaded(tmp_path, text, names=("meta.Guest",)).ids == {"": ["ann", "bob"]}
        assert "--no-header" in refusal(tmp_path, text)

    @pytest.mark.parametrize("text", [b"id\n", b"id", b"\nid\r\n\r\n", b"id;name\n", b"guestid,dataset\n"])
    def test_alone_have_no_ids(self, tmp_path: Path, text: bytes) -> None:
        column = "" if text.strip() == b"id" else text.decode().split(";")[0].split(",")[0]
        assert "has a header and no ids" in refusal(tmp_path, text, column=column)

    def test_are_only_for_csv(self, tmp_path: Path) -> None:
        assert "leave it out" in refusal(tmp_path, {"id": ["a"]}, has_header=False)
        assert "leave it out" in refusal(tmp_path, b'{"id": "a"}\n', has_header=False)


class TestDelimiters:
    @pytest.mark.parametrize(("delimiter", "shown"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
    def test_are_detected(self, tmp_path: Path, delimiter: str, shown: str) -> None:
        rows = [("name", "guestid"), ("Ann, Ltd.", "4711"), ('"B;|\tob"', "4712")]
        text = "".join(f"{delimiter.join(row)}\n" for row in rows).encode()
        loaded = Loaded(tmp_path, text, column="guestid")
        assert loaded.ids == {"": ["4711", "4712"]}
        assert f"2 columns 'guestid' (separated by {shown}" in loaded.text
        told = refusal(tmp_path, text)
        assert f"(read: 2 columns separated by {shown}" in told
        assert "2 values below the first line, text)" in told

    def test_without_a_header_columns_have_numbers(self, tmp_path: Path) -> None:
        text = b"secret;4711\nx;4712\n"
        assert Loaded(tmp_path, text, has_header=False, column="2").ids == {"": ["4711", "4712"]}
        for column in ("", "3", "0", "guestid"):
            told = refusal(tmp_path, text, has_header=False, column=column)
            assert "2 columns and no header; say which with its number from 1" in told

    def test_that_are_two_are_refused_unless_a_name_tells(self, tmp_path: Path) -> None:
        text = b"id,a;b\n1,4711;x\n2,4712;x\n"
        assert "can be split by commas and by semicolons" in refusal(tmp_path, text)
        assert Loaded(tmp_path, text, column="id").ids == {"": ["1", "2"]}

    def test_within_ids_are_none(self, tmp_path: Path) -> None:
        assert Loaded(tmp_path, b"id\nauth0|1\nauth0|2\n").ids == {"": ["auth0|1", "auth0|2"]}


class TestEncodings:
    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
    def test_utf_16_is_refused(self, tmp_path: Path, encoding: str) -> None:
        assert "UTF-16; convert it to UTF-8" in refusal(tmp_path, "guestid\n4711\nsecret\n".encode(encoding))

    def test_other_encodings_are_refused(self, tmp_path: Path) -> None:
        assert "no text in UTF-8" in refusal(tmp_path, "id\nsecret-größe\n".encode("latin-1"))
        far = b"id\n" + b"7\n" * 200_000 + "secret-ö\n".encode("latin-1")
        assert "cannot be read" in refusal(tmp_path, far)
        assert "is no text, and no Parquet" in refusal(tmp_path, b"\0\x01\x02secret\0")

    def test_a_byte_order_mark_is_none_of_the_header(self, tmp_path: Path) -> None:
        assert Loaded(tmp_path, b"\xef\xbb\xbfguestid\n4711\n", column="guestid").ids == {"": ["4711"]}

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
    def test_compressed_files_are_unpacked(self, tmp_path: Path, pack: Any) -> None:
        assert Loaded(tmp_path, pack(b"guestid\n4711\n"), name="forget.csv.gz").ids == {"": ["4711"]}
        assert Loaded(tmp_path, pack(b'{"id": 4711}\n')).ids == {"": [4711]}

    def test_one_that_is_cut_off_is_refused(self, tmp_path: Path) -> None:
        body = gzip.compress(b"guestid\n4711\n" * 1000)
        assert "cannot be decompressed to its end" in refusal(tmp_path, body[: len(body) // 2], name="forget.csv.gz")
        two = gzip.compress(b"guestid\n4711\n") + gzip.compress(b"4712\n")
        assert Loaded(tmp_path, two).ids == {"": ["4711", "4712"]}


class TestJsonLines:
    def test_the_only_field_has_the_ids(self, tmp_path: Path) -> None:
        loaded = Loaded(tmp_path, b'{"id": "4711"}\n\n{"id": null}\n{"id": "b"}')
        assert loaded.ids == {"": ["4711", "b"]}
        assert loaded.text == "JSON lines, 'id', 2 values, text"
        assert Loaded(tmp_path, b'{"id": -1}\n{"id": 9223372036854775807}\n').kinds == {"": "integer"}
        assert Loaded(tmp_path, b'{"id": 18446744073709551615}\n{"id": -1}\n').ids == {"": [-1, 2**64 - 1]}

    def test_a_field_is_chosen(self, tmp_path: Path) -> None:
        text = b'{"name": "secret", "id": 7}\n{"id": 8, "name": "secret"}\n'
        assert Loaded(tmp_path, text, column="id").ids == {"": [7, 8]}
        assert "2 columns; say which" in refusal(tmp_path, text)
        assert "no column 'guest'" in refusal(tmp_path, text, column="guest")

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (b'{"id": "secret"}\nsecret\n', "line 2 of forget.csv is no JSON object"),
            (b'{"id": "secret"}\n{"name": "secret"}\n', "line 2 of forget.csv has no field of the name"),
            (b'{"": "secret"}\n{"id": "secret"}\n', "line 2 of forget.csv has no field of the name"),
            (b'{"id": true}\n', "neither text nor an integer"),
            (b'{"id": {"secret": 1}}\n', "neither text nor an integer"),
            (b'{"id": 4711.5}\n', "neither text nor an integer"),
            (b'{"id": "secret"}\n{"id": 4711}\n', "text and integers"),
            (b'{"id": 4711}\n{"id": "secret"}\n', "text and integers"),
            (b'{"id": 47110000000000000000000000}\n', "cannot be read"),
            (b'[{"id": "secret"}]\n', "a JSON array; write JSON lines"),
            (b'{"id": "secret",\n"n": 1}\n', "line 1 of forget.csv is no JSON object"),
            (b'{"id": ""}\n', "no ids, but 1 empty value"),
        ],
    )
    def test_what_is_none_is_refused(self, tmp_path: Path, text: bytes, told: str) -> None:
        assert told in refusal(tmp_path, text)

    def test_text_and_integers_are_compared_as_told(self, tmp_path: Path) -> None:
        text = b'{"id": "7"}\n{"id": 8}\n'
        assert Loaded(tmp_path, text, id_type="integer").ids == {"": [7, 8]}
        assert Loaded(tmp_path, text, id_type="string").ids == {"": ["7", "8"]}


class TestEmptyIds:
    @pytest.mark.parametrize(
        "body",
        [
            b'n,id\n1,""\n2,x\n',
            b'{"id": ""}\n{"id": "x"}\n',
            {"id": ["", "x", None]},
            {"id": pa.array(["", "x"]).dictionary_encode()},
            {"id": pa.array(["", "x"], pa.string_view())},
            {"id": [b"", b"x"]},
        ],
    )
    def test_are_ids_only_if_they_are_wanted(self, tmp_path: Path, body: Any) -> None:
        loaded = Loaded(tmp_path, body, column="id")
        assert loaded.ids == {"": ["x"]}
        assert "1 empty values are left out, --empty-id takes them" in loaded.text
        assert Loaded(tmp_path, body, column="id", empty_id=True).ids == {"": ["", "x"]}

    def test_alone_are_no_ids(self, tmp_path: Path) -> None:
        assert "no ids, but 2 empty values, which --empty-id" in refusal(tmp_path, b'id\n""\n""\n')
        assert Loaded(tmp_path, b'id\n""\n""\n', empty_id=True).ids == {"": [""]}
        assert "has no ids;" in refusal(tmp_path, {"id": pa.array([None, None], pa.string())})

    def test_of_csv_are_null_without_quotes(self, tmp_path: Path) -> None:
        assert Loaded(tmp_path, b"n,id\n1,\n2,x\n", column="id", empty_id=True).ids == {"": ["x"]}


class TestUuids:
    @pytest.mark.parametrize(
        "text", [ANN, ANN.upper(), ANN.replace("-", ""), f"{{{ANN}}}", f"urn:uuid:{ANN}", f"URN:UUID:{ANN.upper()}"]
    )
    def test_of_every_form_become_16_bytes(self, tmp_path: Path, text: str) -> None:
        Loaded(tmp_path, {"id": [text, None]}, id_type="uuid")
        ids = IdSet(tmp_path / "sets")
        assert (ids.kind, ids.values.to_pylist()) == ("binary", [bytes.fromhex(ANN.replace("-", ""))])

    @pytest.mark.parametrize("body", [{"id": ["secret"]}, {"id": [4711]}, {"id": [b"secret"]}, {"id": [ANN + "0"]}])
    def test_are_nothing_else(self, tmp_path: Path, body: Any) -> None:
        assert "cannot be read as uuid" in refusal(tmp_path, body, id_type="uuid")

    def test_of_arrow_are_binary(self, tmp_path: Path) -> None:
        values = pa.array([bytes(16)], pa.binary(16))
        assert Loaded(tmp_path, {"id": pa.ExtensionArray.from_storage(pa.uuid(), values)}).kinds == {"": "binary"}


class TestDatasets:
    def test_have_ids_of_their_own(self, tmp_path: Path) -> None:
        text = b"dataset,id\nevents,4711\nclicks,b\nevents,4712\n"
        loaded = Loaded(tmp_path, text, dataset_column="dataset", datasets=["clicks", "events", "other"])
        assert loaded.ids == {"clicks": ["b"], "events": ["4711", "4712"]}
        assert loaded.text == "2 columns 'id' and 'dataset', 3 values, text; for clicks, events"

    def test_may_have_different_types(self, tmp_path: Path) -> None:
        text = b'{"d": "events", "id": 7}\n{"d": "clicks", "id": "7"}\n'
        loaded = Loaded(tmp_path, text, dataset_column="d", datasets=["clicks", "events"])
        assert loaded.kinds == {"clicks": "string", "events": "integer"}

    def test_stand_in_parquet_and_without_a_header(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"datasets": ["a", "b"]}
        columns = {"id": [1, 2], "d": pa.array(["a", "b"]).dictionary_encode(), "n": [0, 0]}
        loaded = Loaded(tmp_path, columns, column="id", dataset_column="d", **options)
        assert loaded.ids == {"a": [1], "b": [2]}
        loaded = Loaded(tmp_path, b"a;1\nb;2\n", dataset_column="1", has_header=False, **options)
        assert loaded.ids == {"a": ["1"], "b": ["2"]}

    @pytest.mark.parametrize(
        ("text", "options", "told"),
        [
            (b"d,id\nsecret,1\na,2\n", {}, "has 1 names that are no data set's; onboarded are: a, b"),
            (b"d,id\n,1\na,2\n", {}, "has 1 rows that name no data set"),
            (b'd,id\n"",1\n,2\n', {}, "has 2 rows that name no data set"),
            (b"x,id\na,1\n", {}, "no column 'd', which --dataset-column names"),
            (b"d,id\na,1\n", {"column": "d"}, "name the same column"),
            (b"d,id,n\na,1,1\n", {}, "2 columns; say which has the ids"),
            (b",id,d\n0,4711,a\n", {}, "2 columns; say which has the ids"),
        ],
    )
    def test_that_are_not_clear_are_refused(
        self, tmp_path: Path, text: bytes, options: dict[str, str], told: str
    ) -> None:
        assert told in refusal(tmp_path, text, dataset_column="d", datasets=["a", "b"], **options)


def test_a_struct_is_refused(tmp_path: Path) -> None:
    assert "the ids of forget.csv are a struct; ids are strings" in refusal(tmp_path, {"id": [{"secret": 1}]})
    assert "different numbers of columns" in refusal(tmp_path, b"id\n1\nsecret,2\n")
