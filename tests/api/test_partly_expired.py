"""A commit of which only a part has expired is shown as what it is: active, and its mark beside it."""

from __future__ import annotations

from refstore import keys
from refstore.records import Mark, encode
from tests.api.conftest import Asgi


def test_a_commit_of_which_a_part_was_swept_is_not_called_swept(asgi: Asgi) -> None:
    repo = asgi.lake.create_repository("part")
    repo.upload("main", "logs/1", b"log")
    repo.upload("main", "data/1", b"data")
    old = repo.commit("main", "both")
    repo.delete("main", "logs/1")
    repo.commit("main", "head")
    ctx = repo.context
    for swept_ms in (0, 3_000):
        ctx.kv.set(keys.mark(ctx.repo, old), encode(Mark(1_000, 2_000, "m", sweeping_ms=swept_ms, swept_ms=swept_ms, prefixes=("logs/",))))
        shown = asgi("GET", f"/repositories/part/commits/{old}").json()
        assert asgi("GET", f"/repositories/part/refs/{old}/objects", params={"path": "data/1"}).content == b"data"
        assert shown.get("state", "active") == "active"
        assert (shown["mark_id"], shown["marked_since"], shown["deletes_at"]) == ("m", 1, 2)
        assert shown["expired_prefixes"] == ["logs/"]
        (listed,) = asgi("GET", "/repositories/part/gc/marks/commits").json()["results"]
        assert listed["expired_prefixes"] == ["logs/"]
    ctx.kv.set(keys.mark(ctx.repo, old), encode(Mark(1_000, 2_000, "m")))
    shown = asgi("GET", f"/repositories/part/commits/{old}").json()
    assert shown["state"] == "marked"
    assert "expired_prefixes" not in shown
    ctx.kv.set(keys.mark(ctx.repo, old), encode(Mark(1_000, 2_000, "m", sweeping_ms=3_000)))
    assert asgi("GET", f"/repositories/part/commits/{old}").json()["state"] == "sweeping"
