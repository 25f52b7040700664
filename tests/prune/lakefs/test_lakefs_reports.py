"""A mark beside the report of lakeFS's own collector."""

from __future__ import annotations

import csv
import json
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore.errors import Corrupt, Invalid, NotFound, RefstoreError
from refstore.objects import open_objects
from refstore_prune.lakefs_reports import compare, write_as_lakefs
from tests.commands import Command
from tests.prune.lakefs.lakefs_server import Lakefs, Repository
from tests.prune.lakefs.test_prune_of_lakefs import age, prune
from tests.prune.lakefs.test_source import fill

SPARK = "_lakefs/retention/gc/unified/gspark"
SGC = "_lakefs/retention/gc/reports/gsgc"


def write_report(
    repository: Repository, addresses: list[str], kind: str, *, count: int = -1, success: bool = True
) -> str:
    summary = {
        "run_id": kind.rpartition("/")[2],
        "success": success,
        "first_slice": "",
        "start_time": "2026-01-01T00:00:00Z",
        "cutoff_time": "2025-12-31T00:00:00Z",
        "num_deleted_objects": len(addresses) if count < 0 else count,
    }
    repository.put(f"{kind}/summary.json", json.dumps(summary).encode())
    if kind == SGC:
        rows = "".join(f'"{address}"\n' for address in addresses)
        repository.put(f"{kind}/deleted.csv", f"address\n{rows}".encode())
    else:
        for number in range(2):
            sink = BytesIO()
            pq.write_table(pa.table({"address": pa.array(addresses[number::2], pa.string())}), sink)
            repository.put(f"{kind}/deleted/part-{number}.snappy.parquet", sink.getvalue())
        repository.put(f"{kind}/deleted/_SUCCESS", b"")
    return f"{kind}"


@pytest.fixture
def marked(lakefs: Lakefs, sales: Repository, store_url: str) -> dict[str, str]:
    addresses = fill(sales)
    addresses["with a comma"] = sales.upload("comma", address="data/x/y,signature")
    sales.put("data/x/y,signature", b"x")
    sales.remove("comma")
    sales.tags["v1"] = addresses["first commit"]
    sales.set_rules(1)
    age(store_url)
    prune(lakefs, store_url)
    return addresses


@pytest.mark.parametrize("kind", [SPARK, SGC])
@pytest.mark.parametrize("is_below", [False, True])
def test_what_both_would_delete(
    lakefs: Lakefs, sales: Repository, store_url: str, marked: dict[str, str], kind: str, is_below: bool
) -> None:
    """lakeFS lets tagged commits go."""
    if is_below:
        store_url += "/sales"
        prune(lakefs, store_url)
    theirs = [marked["overwritten"], marked["with a comma"], marked["old"]]
    root = store_url if is_below else f"{store_url}/sales"
    prefix = "" if is_below else "sales/"
    found = compare(store_url, f"{root}/{write_report(sales, theirs, kind)}")
    assert (found.both, found.only_ours, found.only_theirs) == (2, 1, 1)
    assert found.examples_only_ours == [f"{prefix}{marked['never named']}"]
    assert found.examples_only_theirs == [f"{prefix}{marked['old']}"]
    assert found.their_run == kind.rpartition("/")[2]


def test_nothing_on_their_side(sales: Repository, store_url: str, marked: dict[str, str]) -> None:
    assert compare(store_url, f"{store_url}/sales/{write_report(sales, [], SPARK)}").only_ours == 3


def test_the_mark_as_lakefs_writes_it(
    sales: Repository, store_url: str, marked: dict[str, str], tmp_path: Path
) -> None:
    target = (tmp_path / "report").as_uri()
    summary = write_as_lakefs(store_url, target, namespace=f"{store_url}/sales")
    rows = list(csv.reader(StringIO((tmp_path / "report" / "deleted.csv").read_text())))
    assert rows[0] == ["address"]
    assert sorted(row[0] for row in rows[1:]) == sorted(
        marked[what] for what in ("overwritten", "with a comma", "never named")
    )
    assert json.loads((tmp_path / "report" / "summary.json").read_text()).keys() >= {"cutoff_time", "success"}
    assert summary.num_deleted_objects == 3
    found = compare(store_url, target, namespace=f"{store_url}/sales")
    assert (found.both, found.only_ours, found.only_theirs) == (3, 0, 0)
    assert not any("refstore" in info.key for info in open_objects(store_url).list("sales/_lakefs/"))


def test_the_command_compares_and_writes_the_mark(
    refstore: Command, sales: Repository, store_url: str, marked: dict[str, str], tmp_path: Path
) -> None:
    report = f"{store_url}/sales/{write_report(sales, [marked['overwritten']], SGC)}"
    found = refstore.json("prune", "compare", store_url, report, "--write-to", tmp_path.as_uri() + "/ours")
    assert (found["both"], found["only_ours"], found["only_theirs"]) == (1, 2, 0)
    again = refstore.json(
        "prune", "compare", store_url, tmp_path.as_uri() + "/ours", "--namespace", f"{store_url}/sales"
    )
    assert (again["both"], again["only_ours"], again["only_theirs"]) == (3, 0, 0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"count": 5}, Corrupt, "its summary says 5"),
        ({"success": False}, Invalid, "failed"),
    ],
)
def test_reports_that_cannot_be_compared(
    sales: Repository,
    store_url: str,
    marked: dict[str, str],
    change: dict[str, Any],
    error: type[RefstoreError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        compare(store_url, f"{store_url}/sales/{write_report(sales, ['data/x'], SGC, **change)}")


@pytest.mark.parametrize(
    ("name", "body", "error"),
    [
        ("summary.json", b"{}", Corrupt),
        ("deleted.csv", b"path\nx\n", Corrupt),
        ("deleted.csv", b"address\nx,y\n", Corrupt),
        ("deleted/part-0.snappy.parquet", b"PAR1", Corrupt),
    ],
)
def test_damaged_reports(
    sales: Repository, store_url: str, marked: dict[str, str], name: str, body: bytes, error: type[RefstoreError]
) -> None:
    kind = SPARK if "parquet" in name else SGC
    url = f"{store_url}/sales/{write_report(sales, ['data/x'], kind)}"
    sales.put(f"{kind}/{name}", body)
    with pytest.raises(error):
        compare(store_url, url)


def test_places_that_have_nothing(sales: Repository, store_url: str, marked: dict[str, str]) -> None:
    (Path(unquote(urlsplit(store_url).path)) / "empty").mkdir()
    with pytest.raises(Invalid, match="give the URL of the namespace"):
        compare(store_url, f"{store_url}/empty")
    with pytest.raises(NotFound, match="has no summary"):
        compare(store_url, f"{store_url}/empty", namespace=f"{store_url}/sales")
    with pytest.raises(Invalid, match="does not lie in"):
        compare(store_url, f"{store_url}/empty", namespace="s3://bucket/sales")
    with pytest.raises(NotFound, match="no mark"):
        compare(f"{store_url}/sales", f"{store_url}/empty", namespace=f"{store_url}/sales")
