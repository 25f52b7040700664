"""What has expired, over HTTP: complete commits are read by lakeFS's clients as any; marked ones are hidden where the
rules say so.
"""

from __future__ import annotations

import json

import lakefs
import pytest
from lakefs.exceptions import LakeFSException

from refstore.core.ids import CommitId
from refstore.lake import open_lake_at
from refstore.repository import Repository
from tests.api.conftest import Running
from tests.kit import collecting
from tests.offline.world import SkippingClock
from tests.reaping import release_all

DAY_MS = 86_400_000


@pytest.fixture
def history(main: lakefs.Branch) -> list[str]:
    """c0 {a}, c1 {a, b}, c2 {b, c}, c3 {b, c, d}: what c0 names beyond others goes, and nothing of c2."""
    ids: list[str] = []
    for number, name in enumerate("abcd"):
        if name == "c":
            main.object("a").delete()
        main.object(name).upload(name)
        ids.append(main.commit(f"c{number}").id)
    return ids


def mark(service: Running, name: str, commits: list[str], **rules: object) -> None:
    with open_lake_at(service.kv, service.objects, clock=SkippingClock()) as lake:
        repo: Repository = lake.repository(name)
        release_all(repo)
        repo.set_retention(json.dumps({"default_retention_days": 0, **rules}))
        collecting.mark(repo.context, [CommitId(commit) for commit in commits], grace_ms=7 * DAY_MS)


def test_clients_read_and_name_a_commit_with_nothing_to_delete(
    service: Running, repo: lakefs.Repository, history: list[str]
) -> None:
    mark(service, repo.id, history[:3], hide_marked=True)
    assert repo.commit(history[2]).object("c").reader().read() == b"c"
    assert [each.path for each in repo.commit(history[2]).objects()] == ["b", "c"]
    assert repo.branch("at-it").create(history[2]).object("b").reader().read() == b"b"
    assert repo.tag("v1").create(history[2]).get_commit().id == history[2]
    with service.http() as http:
        states = {
            each["id"]: each.get("state", "active")
            for each in http.get(f"/repositories/{repo.id}/refs/main/commits").json()["results"]
        }
    assert [states[commit] for commit in history] == ["marked", "marked", "expired, nothing to delete", "active"]


def test_hidden_is_410_with_the_date(service: Running, repo: lakefs.Repository, history: list[str]) -> None:
    mark(service, repo.id, history[:3], hide_marked=True)
    commit = f"/repositories/{repo.id}/refs/{history[0]}/objects"
    with service.http() as http:
        for path, query in (
            ("", {"path": "a"}),
            ("", {"path": "a", "presign": "true"}),
            ("/stat", {"path": "a"}),
            ("/ls", {}),
        ):
            answer = http.get(commit + path, params=query)
            assert answer.status_code == 410, path
            assert "will be deleted from 20" in answer.json()["message"]
        assert http.head(commit, params={"path": "a"}).status_code == 410
        for left, right in ((history[0], "main"), ("main", history[0])):
            for kind in ("two_dot", "three_dot"):
                answer = http.get(f"/repositories/{repo.id}/refs/{left}/diff/{right}", params={"type": kind})
                assert answer.status_code == 410
        with pytest.raises(LakeFSException):
            repo.commit(history[0]).object("a").reader().read()
        shown = http.delete(f"/repositories/{repo.id}/gc/marks/{history[0]}", params={"pin": "true"})
        assert shown.json() == {"unmarked_commits": 1, "expired_commits": 0, "pinned_commits": 1}
        assert http.get(commit, params={"path": "a"}).content == b"a"
        left = http.delete(f"/repositories/{repo.id}/gc/marks/{history[1]}")
        assert left.json() == {"unmarked_commits": 1, "expired_commits": 1, "pinned_commits": 0}
