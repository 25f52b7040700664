"""Sizes that callers give are bounded, and sums of those that are there already stop growing, and say so."""

from __future__ import annotations

import pytest

import refstore
from refstore.configuration.settings import ApiSettings
from refstore.core.ids import SIZE_BYTES_MAX
from refstore.core.units import SUM_BYTES_MAX, format_bytes, format_size, sum_sizes
from refstore.errors import Invalid
from refstore.operations.upload import Stage
from refstore.versioning.commits.metaranges import Metarange, RangeRow
from tests.api.service import application
from tests.commands import Command
from tests.kit.unchecked_staging import stage_unchecked

HUGE = 1 << 62
"""Two of them are more than a file's column holds, four are nothing in it."""


@pytest.mark.parametrize("size", [-1, SIZE_BYTES_MAX + 1, 1 << 64])
def test_a_size_that_no_object_has_is_refused_wherever_it_is_given(sales: Command, size: int) -> None:
    for words in (
        ["import", "--stage", "sales", "main", "s3://b/x", "p"],
        ["link", "sales", "main", "p", "--token", "t"],
    ):
        assert sales(*words, f"--size={size}", "--json").error["code"] == "usage"
    with refstore.open(sales.folder / "lake") as lake, pytest.raises(Invalid, match="9,007,199,254,740,992"):
        lake.repository("sales").stage_many("main", [Stage(path="p", url="s3://b/x", size_bytes=size)])
    with application(ApiSettings()) as service:
        service.lake.create_repository("sales")
        body = {"physical_address": "s3://b/x", "checksum": "", "size_bytes": size}
        staged = service("PUT", "/repositories/sales/branches/main/objects", params={"path": "p"}, json=body)
        link = {"staging": {"physical_address": "x"}, "checksum": "", "size_bytes": size}
        linked = service("PUT", "/repositories/sales/branches/main/staging/backing", params={"path": "p"}, json=link)
        assert ([staged.status_code, linked.status_code], staged.json()["code"]) == ([400, 400], "invalid")


def test_the_largest_size_is_taken(sales: Command) -> None:
    sales.ok("import", "--stage", "sales", "main", "s3://b/x", "p", f"--size={SIZE_BYTES_MAX}")
    assert sales.json("stat", "sales", "main", "p")["size_bytes"] == SIZE_BYTES_MAX


def test_sums_of_what_is_there_stop_growing_and_say_so(sales: Command) -> None:
    with refstore.open(sales.folder / "lake") as lake:
        for number in range(5):
            stage_unchecked(lake.repository("sales"), f"a/{number}", f"s3://b/{number}", HUGE)
    assert "at least 9,223.4 PB" in sales.ok("status", "sales").out
    assert sales.json("status", "sales")["branches"][0]["staged_bytes"] == SUM_BYTES_MAX
    sales.ok("commit", "sales", "main", "-m", "huge")
    sales.ok("reaper", "--once")
    assert sales.json("status")[0]["live_bytes"] == SUM_BYTES_MAX
    assert sales.json("status", "sales")["live"] == "5 entries, at least 9,223,372,036,854,775,807 bytes"
    assert sales.json("ls", "--summarize", "sales", "main")[0]["size_bytes"] == SUM_BYTES_MAX
    summed = ["ls", "--summarize", "sales", "main"]
    for words in (["diff", "sales", "main~1", "--to", "main", "--summarize"], ["show", "sales", "main"], summed):
        assert "at least 9,223.4 PB" in sales.ok(*words).out
    assert sales.json("diff", "sales", "main", "--to", "main~1", "--summarize")[0]["bytes"] == -SUM_BYTES_MAX


def test_a_tree_of_many_ranges_is_as_large_as_a_sum_can_be() -> None:
    rows = [RangeRow(str(number), str(number), "id", 1, size) for number, size in enumerate((SUM_BYTES_MAX, 7, 7))]
    assert Metarange.from_rows(rows, "").size_bytes == SUM_BYTES_MAX
    # of a range that was written when its sum could begin again from below
    assert Metarange.from_rows([RangeRow("a", "b", "id", 2, -(1 << 63))], "").size_bytes == SUM_BYTES_MAX


def test_only_a_sum_that_stopped_growing_is_at_least_so_much() -> None:
    assert (format_size(SUM_BYTES_MAX - 1), format_bytes(1500)) == ("9,223.4 PB", "1,500 bytes")
    assert (format_size(sum_sizes([HUGE] * 3)), format_size(-SUM_BYTES_MAX)) == (
        "at least 9,223.4 PB",
        "at most -9,223.4 PB",
    )
