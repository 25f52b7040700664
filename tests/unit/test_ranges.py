"""Ranges and metaranges: what they hold, how they are cut, what they refuse."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.core.ids import Address
from refstore.errors import CorruptRange, Invalid
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import columns, metaranges, object_names, ranges
from refstore.versioning.commits.columns import Rows
from refstore.versioning.commits.metaranges import Metarange, RangeRow
from refstore.versioning.commits.range_cutter import ExistingRows, NewRows, RangeCutter, RangeRows
from refstore.versioning.commits.ranges import CUT_RULE, CutRule

SUFFIX = "0" * 26
Decode = Callable[[str, bytes], object]
DECODES = [ranges.decode, ranges.decode_addresses]


def rows_of(paths: Sequence[str], **fields: object) -> Rows:
    entry = StoredEntry(Address("data/2026112107/" + "0" * 26), 1, "c", 2, **fields)
    return ranges.rows_of(paths, [entry] * len(paths))


def written(rows: Rows) -> tuple[str, bytes]:
    body = ranges.encode(rows)
    return object_names.new_id(ranges.hash_hex(body), SUFFIX), body


# ---- rows


@pytest.mark.parametrize(
    "entry",
    [
        StoredEntry(
            Address("data/2026112107/" + "z" * 26),
            2**63 - 1,
            "c" * 64,
            2**63 - 1,
            {"k": "v", "a": "ü\0\U0001f600"},
            "text/plain",
        ),
        StoredEntry(Address("s3://bucket/é key?x=1#y"), 0, "", -1, {}, ""),
        StoredEntry(Address(""), -1, "", 0, {"": ""}, ""),
        StoredEntry(Address("data/2026112107/" + "z" * 26), 1, "c" * 64, 0, md5="d" * 32),
        StoredEntry(
            Address("data/2026112107/" + "z" * 26),
            *(8, "", 0),
            s3=S3Attributes(ContentDescription("crc32", "x", True, "1-2", ((2, 3), (1, 2)), ("x", "y")), {"a": "1"}),
        ),
    ],
)
def test_an_entry_comes_back_as_it_was(entry: StoredEntry) -> None:
    range_id, body = written(ranges.rows_of(["p"], [entry]))
    assert ranges.items_of(ranges.decode(range_id, body)) == [("p", entry)]


def test_paths_of_any_alphabet_and_of_a_kibibyte_keep_the_order_of_their_bytes() -> None:
    paths = sorted(
        ["a", "ä", "\uffff", "\U0001f600", "é" * 512, "x" * 1024, "\x01", "a/b", "a b", "a\nb", "日本語/ファイル", "~"]
    )
    assert paths == sorted(paths, key=str.encode)
    range_id, body = written(rows_of(paths))
    assert ranges.paths_of(ranges.decode(range_id, body)) == paths


def test_equal_metadata_makes_equal_bytes_whatever_its_order() -> None:
    assert ranges.encode(rows_of(["p"], metadata={"a": "1", "b": "2"})) == ranges.encode(
        rows_of(["p"], metadata={"b": "2", "a": "1"})
    )


def test_bytes_do_not_depend_on_how_the_rows_came_together() -> None:
    paths = [f"{n:03d}" for n in range(100)]
    whole = rows_of(paths)
    pieces = [whole.slice(0, 1), whole.slice(1, 60), rows_of(paths[61:]).slice(0, 39)]
    assert ranges.encode(columns.concatenate(pieces)) == ranges.encode(whole)
    assert ranges.encode(
        columns.take_rows(columns.concatenate([rows_of(["zzz"]), whole]), range(1, 101))
    ) == ranges.encode(whole)


@pytest.mark.parametrize(
    "bad",
    [
        {"size_bytes": 2**63},
        {"size_bytes": "1"},
        {"checksum": 5},
        {"mtime_ms": None},
        {"checksum": "\ud800"},
        {"metadata": {"k": "\udfff"}},
    ],
)
def test_what_does_not_fit_is_the_callers_to_correct(bad: dict[str, object]) -> None:
    fields: dict[str, object] = {"address": "data/x", "size_bytes": 1, "checksum": "", "mtime_ms": 0, **bad}
    with pytest.raises(Invalid, match=r"'some/path'.*stage it again"):
        ranges.rows_of(["some/path"], [StoredEntry(**fields)])


def test_a_range_says_what_wrote_it_and_is_plain_parquet() -> None:
    _, body = written(rows_of(["a", "b"]))
    file = pq.ParquetFile(columns.pa.BufferReader(body))
    assert file.metadata.metadata == {b"refstore.range": b"1"}
    assert file.read().to_pylist()[1]["path"] == "b"


def test_an_md5_that_is_known_now_makes_no_other_entry() -> None:
    without, known = rows_of(["a", "b"]), rows_of(["a", "b"], md5="d" * 32)
    assert columns.compare_values(without, known, ranges.COMPARED) == [True, True]
    assert [rows.num_rows for rows in columns.drop_equal(without, known, ranges.COMPARED)] == [0, 0]
    assert columns.compare_values(without, rows_of(["a", "b"], content_type="x/y"), ranges.COMPARED) == [False, False]
    described = rows_of(["a", "b"], s3=S3Attributes(headers={"expires": "0"}))
    assert columns.compare_values(without, described, ranges.COMPARED) == [False, False]


# ---- what is refused, although its hash is right


def test_rows_out_of_order_are_refused() -> None:
    for paths in (["b", "a"], ["a", "a"], ["a", "c", "b"]):
        range_id, body = written(rows_of(paths))
        with pytest.raises(CorruptRange, match="not in order"):
            ranges.decode(range_id, body)


@pytest.mark.parametrize("decode", DECODES)
def test_an_empty_range_is_refused(decode: Decode) -> None:
    range_id, body = written(columns.empty_rows(ranges.LAYOUT))
    with pytest.raises(CorruptRange):
        decode(range_id, body)


@pytest.mark.parametrize("decode", DECODES)
def test_another_version_is_refused_and_said(monkeypatch: pytest.MonkeyPatch, decode: Decode) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ranges, "LAYOUT", columns.Layout("refstore.range", "2", ranges.LAYOUT.fields))
        range_id, body = written(rows_of(["a"], md5="d" * 32))
    with pytest.raises(CorruptRange, match="version '2', this program reads '1'; a newer refstore may read it"):
        decode(range_id, body)


@pytest.mark.parametrize("decode", DECODES)
def test_other_columns_are_refused(monkeypatch: pytest.MonkeyPatch, decode: Decode) -> None:
    range_id, body = written(rows_of(["a"], md5="d" * 32))
    more = columns.Layout("refstore.range", "1", (*ranges.LAYOUT.fields, ("more", columns.ColumnKind.TEXT)))
    monkeypatch.setattr(ranges, "LAYOUT", more)
    with pytest.raises(CorruptRange):
        decode(range_id, body)


@pytest.mark.parametrize("decode", DECODES)
def test_one_bit_that_is_another_is_refused(decode: Decode) -> None:
    range_id, body = written(rows_of(["a", "b"]))
    for at in range(0, len(body), 37):
        with pytest.raises(CorruptRange, match="do not have the hash in its name"):
            decode(range_id, body[:at] + bytes([body[at] ^ 4]) + body[at + 1 :])


def test_the_addresses_alone_are_those_of_the_rows() -> None:
    rows = columns.rows_of(
        ranges.LAYOUT, (["a", "b"], ["x", "y"], [1, 2], ["c", "d"], [2, 3], ["", ""], ["", ""], ["", ""], ["", "e"])
    )
    assert ranges.decode_addresses(*written(rows)).to_pylist() == ["x", "y"]


@pytest.mark.parametrize("decode", DECODES)
def test_what_is_no_parquet_is_refused(decode: Decode) -> None:
    for body in (b"", b"PAR1", b"x" * 1000):
        with pytest.raises(CorruptRange, match="not Parquet"):
            decode(object_names.new_id(ranges.hash_hex(body), SUFFIX), body)


@pytest.mark.parametrize(("metadata", "s3"), [("{", ""), ("", "["), ("", '[["crc32","x",false,"",[["9","1"]]]]')])
def test_metadata_that_cannot_be_decoded_is_refused(metadata: str, s3: str) -> None:
    rows = columns.rows_of(ranges.LAYOUT, (["a"], ["x"], [1], ["c"], [2], [metadata], [""], [s3], [""]))
    with pytest.raises(CorruptRange, match="metadata"):
        ranges.entries_of(rows)


# ---- metaranges

ROWS = (
    RangeRow("a", "c", f"{'1' * 64}.{'0' * 26}", 3, 10),
    RangeRow("d", "d", f"{'2' * 64}.{'0' * 26}", 1, 5),
)


def sealed(metarange: Metarange) -> tuple[str, bytes]:
    return object_names.new_id(metarange.content_hash, SUFFIX), metaranges.encode(metarange)


def test_a_metarange_comes_back_as_it_was() -> None:
    metarange = Metarange.from_rows(ROWS, "1/2/3")
    assert metaranges.decode(*sealed(metarange)) == metarange
    assert (metarange.count, metarange.size_bytes) == (4, 15)


def test_its_hash_is_of_the_content_and_not_of_the_suffixes() -> None:
    other = tuple(row._replace(id=row.id[:-1] + "z") for row in ROWS)
    assert Metarange.from_rows(other, "").content_hash == Metarange.from_rows(ROWS, "").content_hash
    assert Metarange.from_rows(ROWS[:1], "").content_hash != Metarange.from_rows(ROWS, "").content_hash
    assert metaranges.encode(Metarange.from_rows(other, "")) != metaranges.encode(Metarange.from_rows(ROWS, ""))


def test_a_changed_suffix_breaks_the_seal() -> None:
    """It would lead to a range that is not there, and leave the true one to be deleted as an orphan."""
    metarange_id, _ = sealed(Metarange.from_rows(ROWS, ""))
    other = metaranges.encode(Metarange.from_rows([row._replace(id=row.id[:-1] + "z") for row in ROWS], ""))
    assert metaranges.decode(metarange_id, other).rows != ROWS, "sealed as it is, this one is sound"
    plain = columns.encode(metaranges.LAYOUT, columns.rows_of(metaranges.LAYOUT, tuple(zip(*ROWS, strict=True))))
    with pytest.raises(CorruptRange, match="seal"):
        metaranges.decode(metarange_id, plain)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[::-1],
        (ROWS[0], ROWS[0]),
        (ROWS[0]._replace(first_path="d"),),
        (ROWS[0]._replace(first_path=""),),
        (ROWS[0]._replace(rows=0),),
        (ROWS[0], ROWS[1]._replace(first_path="c")),
    ],
)
def test_ranges_out_of_order_are_refused(rows: tuple[RangeRow, ...]) -> None:
    with pytest.raises(CorruptRange, match="not in order"):
        metaranges.decode(*sealed(Metarange.from_rows(rows, "")))


def test_a_metarange_that_was_sealed_for_another_id_is_refused() -> None:
    _, body = sealed(Metarange.from_rows(ROWS[:1], ""))
    metarange_id, _ = sealed(Metarange.from_rows(ROWS, ""))
    with pytest.raises(CorruptRange, match="content whose hash"):
        metaranges.decode(metarange_id, body)


def test_the_ids_alone_are_read_as_carefully() -> None:
    metarange_id, body = sealed(Metarange.from_rows(ROWS, "1/2/3"))
    assert metaranges.range_ids(metarange_id, body).to_pylist() == [row.id for row in ROWS]
    other_id, other = sealed(Metarange.from_rows(ROWS[:1], "1/2/3"))
    for named, damaged in (
        (metarange_id, other),
        (other_id, body),
        (metarange_id, body[:-1]),
        (metarange_id, body[:60] + bytes([body[60] ^ 1]) + body[61:]),
    ):
        with pytest.raises(CorruptRange):
            metaranges.range_ids(named, damaged)


def test_a_path_that_looks_like_a_seal_does_not_mislead() -> None:
    rows = [RangeRow("a", "refstore.seal\x18@" + "0" * 64, ROWS[0].id, 2, 0)]
    metarange = Metarange.from_rows(rows, "refstore.seal\x18@" + "f" * 64)
    assert metaranges.decode(*sealed(metarange)) == metarange


# ---- where ranges end


def pieces(cut: CutRule, paths: Sequence[str], portions: Sequence[int] = ()) -> list[list[str]]:
    """The paths of each range, the rows being fed in such portions."""
    rows, cutter, found, at = rows_of(paths), RangeCutter(cut), list[RangeRows](), 0
    for size in [*portions, len(paths)]:
        end = min(at + size, len(paths))
        found += cutter.feed(NewRows(cut, rows.slice(at, end - at), paths[at:end]))
        at = end
    found += cutter.finish()
    return [[path for part in piece.parts for path in ranges.paths_of(part)] for piece in found]


def by_definition(cut: CutRule, paths: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for path in paths:
        found[-1].append(path)
        if len(found[-1]) == cut.rows_max or (len(found[-1]) >= cut.rows_min and cut.is_boundary(path)):
            found.append([])
    return found if found[-1] else found[:-1]


CUTS = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 12)).map(
    lambda each: CutRule(each[0], each[1], each[0] + each[2])
)


@settings(deadline=None)
@given(CUTS, st.sets(st.text(max_size=3).filter(bool), max_size=60), st.lists(st.integers(0, 20), max_size=8))
def test_rows_are_cut_as_the_rule_says_in_whatever_portions_they_come(
    cut: CutRule, paths: set[str], portions: list[int]
) -> None:
    paths = {path for path in paths if not any("\ud800" <= letter <= "\udfff" for letter in path)}
    expected = by_definition(cut, sorted(paths))
    assert pieces(cut, sorted(paths), portions) == expected
    assert pieces(cut, sorted(paths)) == expected


@settings(deadline=None)
@given(CUTS, st.integers(1, 60), st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_what_is_known_of_an_old_range_is_true(
    cut: CutRule, count: int, start: int, more: int, is_cut_so: bool
) -> None:
    """`ExistingRows` finds the boundaries that hashing every path finds."""
    for piece in by_definition(cut, [f"{n:04d}" for n in range(count)]):
        low = min(start, len(piece))
        high = min(low + more, len(piece))
        old = ExistingRows(cut, rows_of(piece), low, high, is_cut_so=is_cut_so)
        fresh = NewRows(cut, rows_of(piece[low:high]), piece[low:high])
        for at in range(high - low + 1):
            # an old range's early rows may be boundary paths, and they may matter once rows come before them
            assert old.next_boundary(at) == fresh.next_boundary(at)


@settings(deadline=None)
@given(CUTS, st.integers(1, 40), st.integers(0, 40), st.integers(0, 40))
def test_nothing_is_taken_for_known_of_a_range_that_another_rule_cut(
    cut: CutRule, count: int, start: int, end: int
) -> None:
    paths = [f"{n:04d}" for n in range(count)]
    low, high = sorted((min(start, count), min(end, count)))
    old = ExistingRows(cut, rows_of(paths), low, high, is_cut_so=False)
    fresh = NewRows(cut, rows_of(paths[low:high]), paths[low:high])
    assert [old.next_boundary(at) for at in range(high - low + 1)] == [
        fresh.next_boundary(at) for at in range(high - low + 1)
    ]


@pytest.mark.parametrize(
    "path",
    [
        lambda n: f"dataset/part-{n:07d}.parquet",
        lambda n: f"{n}",
        lambda n: f"{n:x}" * 3,
        lambda n: f"{random.Random(n).random()}",
        lambda n: f"images/{n % 100:02d}/{n:032d}",
    ],
    ids=["parts", "numbers", "hexadecimal", "random", "folders"],
)
def test_names_that_count_up_are_cut_as_evenly_as_random_ones(path: Callable[[int], str]) -> None:
    sizes = [len(each) for each in by_definition(CUT_RULE, sorted(path(n) for n in range(100_000)))]
    average = sum(sizes) / len(sizes)
    assert 0.9 <= average / (CUT_RULE.rows_min + CUT_RULE.rows_more) <= 1.1
    assert sum(size == CUT_RULE.rows_max for size in sizes) <= 0.15 * len(sizes)


def test_an_edit_moves_few_cuts() -> None:
    paths = [f"dataset/part-{n:07d}.parquet" for n in range(100_000)]
    before = {tuple(each) for each in by_definition(CUT_RULE, paths)}
    random.seed(7)
    new = 0
    for _ in range(20):
        at = random.randrange(len(paths))
        edited = paths[:at] + ([] if random.random() < 0.5 else [paths[at], paths[at] + "+"]) + paths[at + 1 :]
        new += sum(tuple(each) not in before for each in by_definition(CUT_RULE, edited))
    assert new / 20 <= 2


def test_a_boundary_is_one_path_in_so_many() -> None:
    cut = CutRule(rows_min=1, rows_more=10, rows_max=100)
    paths = [f"{n}" for n in range(20_000)]
    assert 1800 <= len(cut.find_boundaries(paths)) <= 2200
    assert [at for at, path in enumerate(paths) if cut.is_boundary(path)] == cut.find_boundaries(paths)
    assert CutRule(rows_min=1, rows_more=1, rows_max=1).is_boundary("anything")


def test_the_rule_is_part_of_the_format() -> None:
    """These must not change: trees written before would share nothing with trees written after."""
    assert CUT_RULE.label == "192/192/768"
    assert CUT_RULE.find_boundaries([f"dataset/part-{n:07d}.parquet" for n in range(1000)]) == [
        200,
        420,
        566,
        615,
        774,
        962,
    ]


@pytest.mark.parametrize("numbers", [(0, 1, 1), (2, 1, 1), (1, 0, 1)])
def test_a_rule_that_makes_no_sense_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(Invalid):
        CutRule(*numbers)


# ---- names


def test_ids() -> None:
    one, same, other = f"{'a' * 64}.{'0' * 26}", f"{'a' * 64}.{'1' * 26}", f"{'b' * 64}.{'0' * 26}"
    assert object_names.have_same_content(one, same)
    assert not object_names.have_same_content(one, other)
    assert not object_names.have_same_content(one, "")
    assert object_names.key(object_names.RANGES, one) == f"_refstore/ranges/{one}.parquet"
    assert object_names.id_of_key(object_names.key(object_names.ADDED_ADDRESSES, one)) == one
    assert object_names.id_of_key("_refstore/ranges/notes.txt") == ""
