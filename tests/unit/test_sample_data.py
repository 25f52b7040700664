"""Sample data: what the tutorials of lakeFS and its clients expect of it."""

from __future__ import annotations

import io
from datetime import timedelta

import pyarrow.parquet as pq

from refstore.core.clock import to_datetime
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.service import sample_data


def test_the_data_is_what_the_tutorials_name_and_committed() -> None:
    with Lake(MemoryKV(), "memory://sample-data") as lake:
        repo = lake.create_repository("quickstart", default_branch="trunk")
        commit = sample_data.add_sample_data(repo, committer="me")
        assert list(repo.diff("trunk")) == []
        found = dict(repo.list("trunk"))
        assert sorted(found) == [
            "README.md",
            "data/lakes.source.md",
            sample_data.VISITS,
            "lakes.parquet",
        ]
        assert found["lakes.parquet"].size_bytes >= 512 << 10
        assert "lakefs://quickstart/trunk/lakes.parquet" in repo.read("trunk", "README.md").decode()
        record = repo.get_commit(commit)
        assert (record.message, record.committer) == ("Add sample data", "me")


def test_every_repository_gets_the_same_lakes() -> None:
    first, second = sample_data.lakes_parquet(), sample_data.lakes_parquet()
    assert first == second
    table = pq.read_table(io.BytesIO(first))
    assert table.num_rows == 100_000
    assert table.column_names == ["Hylak_id", "Lake_name", "Country", "Depth_m"]
    assert "Denmark" in table["Country"].to_pylist()
    assert table["Hylak_id"].to_pylist()[:2] == [1, 2]


def test_the_history_is_of_the_past_and_each_commit_replaces_the_visits_before() -> None:
    with Lake(MemoryKV(), "memory://sample-data") as lake:
        repo = lake.create_repository("quickstart")
        sample_data.add_sample_data(repo)
        now = to_datetime(lake.clock.now_ms())
        commits = list(repo.log("main"))[1:-1]
        assert [round((now - each.created) / timedelta(days=1)) for each in commits] == [30, 60, 90, 120]
        rows = [
            pq.read_table(io.BytesIO(repo.read(ref, sample_data.VISITS))).num_rows
            for ref in ("main", "main~2", "main~3", "main~4")
        ]
        assert rows == [200, 150, 100, 50]
