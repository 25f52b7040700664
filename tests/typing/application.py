"""An application that uses the library as a whole. The test beside it runs it, and checks its types as strictly as
pyright and mypy can.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import refstore
import refstore_gc
import refstore_purge
import refstore_reaper
from refstore import errors

DAY = "2026/11/21.csv"
RULES = refstore.Retention(default=timedelta(days=30), branches={"main": timedelta(days=90)})
DOCUMENT = refstore.PurgeDocument(
    whitelist=("visits",),
    datasets=(refstore.Dataset("visits", "visits/", "guest", "rewrite", "csv"),),
)


def load(repo: refstore.Repository) -> refstore.Commit:
    with repo.transaction("main", "load 21", metadata={"job": "7"}) as tx:
        entry: refstore.Entry = tx.upload(
            DAY, b"city,celsius\nbern,4\noslo,-3\n", modified=datetime(2026, 11, 21, tzinfo=UTC)
        )
        with tx.open("cold.csv", "w") as cold, tx.open(DAY, "r") as day:
            writer = csv.writer(cold)
            writer.writerows(row for row in csv.reader(day) if row[1].startswith("-"))
        assert tx.stat(DAY) == entry
        assert entry.modified < tx.stat("cold.csv").modified
    return repo.get_commit("main")


def read(ref: refstore.Ref) -> list[str]:
    with ref.open("cold.csv") as file:
        file.seek(0, io.SEEK_END)
        assert file.tell() == ref.stat("cold.csv").size_bytes
    return [item.path for item in ref.list() if item.entry is not None]


def share(repo: refstore.Repository) -> refstore.Tag:
    main = repo.branch("main")
    repo.create_branch("dev", source="main")
    dev = repo.branch("dev")
    outcomes: Iterable[object] = dev.upload_each([refstore.Upload(path=f"more/{n}", body=b"1") for n in range(3)])
    assert all(isinstance(each, refstore.Entry) for each in outcomes)
    dev.copy(DAY, to_branch=dev, to_path="latest.csv")
    dev.commit("more")
    assert sorted(change.path for change in dev.diff(to=main)) == ["latest.csv", "more/0", "more/1", "more/2"]
    merged: refstore.Commit = main.merge_from(dev, message="share")
    assert merged.created.tzinfo is UTC
    dev.delete_branch()
    repo.create_tag("v1", ref=merged.id)
    return repo.get_tag("v1")


def undo(branch: refstore.Branch) -> None:
    branch.upload("wrong.csv", b"wrong")
    branch.reset()
    lost: list[refstore.TrashItem] = list(branch.trash())
    assert [item.path for item in lost] == ["wrong.csv"]
    results: Iterable[refstore.RestoreResult] = branch.restore_many()
    assert [result.path for result in results] == ["wrong.csv"]
    branch.reset()


def delete(lake: refstore.Lake, repo: refstore.Repository) -> tuple[int, int]:
    repo.set_retention(RULES)
    reaped: refstore_reaper.ReapReport = refstore_reaper.reap(lake, grace=timedelta(0))
    tried: refstore_gc.CollectReport = refstore_gc.collect(repo, dry_run=True)
    for each in refstore_gc.collect(lake, only="sweep"):
        assert each.repository == repo.name
    return reaped.deleted, sum(sweep.deleted.objects for sweep in tried.sweeps)


def forget(repo: refstore.Repository, guests: list[str]) -> int:
    repo.branch("main").upload("visits/1.csv", b"guest,page\nann,a\nbob,b\n")
    repo.branch("main").commit("visits")
    refstore_purge.onboard(repo, DOCUMENT, by="lena")
    report: refstore_purge.PurgeReport = refstore_purge.purge(repo, guests)
    assert not refstore_purge.verify(repo, guests).findings
    return sum(row.rows_changed for row in report.rows)


def main(folder: Path) -> None:
    try:
        refstore.open(folder)
    except LookupError as error:  # or errors.NotFound, which is one
        print(isinstance(error, errors.NotFound))
    with refstore.create(folder) as lake:
        repo = lake.create_repository("weather")
        print(load(repo).message, read(repo.ref("main")), share(repo).name)
        undo(repo.branch("main"))
        print(delete(lake, repo), forget(repo, ["ann"]))
    with refstore.open(folder, read_only=True) as lake:
        for each in lake.repositories():
            print(each.name, [branch.name for branch in each.branches()], [tag.name for tag in each.tags()])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
