"""A commit of which only a part has expired is shown as what it is."""

from __future__ import annotations

from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.mark_records import StoredMark
from tests.api.service import Application
from tests.kit import collecting


def test_a_commit_of_which_a_part_was_swept_is_not_called_swept(asgi: Application) -> None:
    repo = asgi.lake.create_repository("part")
    repo.upload("main", "logs/1", b"log")
    repo.upload("main", "data/1", b"data")
    old = repo.commit("main", "both").id
    repo.delete("main", "logs/1")
    repo.commit("main", "head")
    ctx = repo.context
    for swept_ms, state in ((0, "partly marked"), (3_000, "partly swept")):
        ctx.kv.set(
            keys.mark(ctx.repo, old),
            encode(StoredMark(1_000, 2_000, "m", sweeping_ms=swept_ms, swept_ms=swept_ms, prefixes=("logs/",))),
        )
        shown = asgi("GET", f"/repositories/part/commits/{old}").json()
        assert asgi("GET", f"/repositories/part/refs/{old}/objects", params={"path": "data/1"}).content == b"data"
        assert shown["state"] == state
        assert (shown["mark_id"], shown["marked_since"], shown["deletes_at"]) == ("m", 1, 2)
        assert shown["expired_prefixes"] == ["logs/"]
        (listed,) = asgi("GET", "/repositories/part/gc/marks/commits").json()["results"]
        assert listed["expired_prefixes"] == ["logs/"]
    ctx.kv.set(keys.mark(ctx.repo, old), encode(StoredMark(1_000, 2_000, "m")))
    shown = asgi("GET", f"/repositories/part/commits/{old}").json()
    assert shown["state"] == "marked"
    assert "expired_prefixes" not in shown
    ctx.kv.set(keys.mark(ctx.repo, old), encode(StoredMark(1_000, 2_000, "m", sweeping_ms=3_000)))
    assert asgi("GET", f"/repositories/part/commits/{old}").json()["state"] == "sweeping"


def test_a_tagged_commit_is_called_so_and_what_is_tagged_is_out_of_sight(asgi: Application) -> None:
    """The bucket has deleted nothing yet. A part that is tagged fails nobody who asks for another at the same time."""
    repo = asgi.lake.create_repository("tagged")
    repo.upload("main", "logs/1", b"log")
    repo.upload("main", "data/1", b"data")
    old = repo.commit("main", "both").id
    repo.delete("main", "logs/1")
    repo.commit("main", "head")
    ctx = repo.context
    collecting.write_tagged(ctx, "m", [repo.stat(old, "logs/1").address], [repo.stat(old, "data/1").address])

    def statuses(path: str) -> list[int]:
        where = f"/repositories/tagged/refs/{old}/objects"
        return [
            asgi(method, f"{where}{of}", params={"path": path}).status_code
            for method, of in (("GET", ""), ("HEAD", ""), ("GET", "/stat"))
        ]

    ctx.kv.set(
        keys.mark(ctx.repo, old),
        encode(StoredMark(1_000, 2_000, "m", sweeping_ms=3_000, tagged_ms=4_000, prefixes=("logs/",))),
    )
    assert (statuses("logs/1"), statuses("data/1")) == ([410] * 3, [200] * 3)
    ctx.kv.set(keys.mark(ctx.repo, old), encode(StoredMark(1_000, 2_000, "m", sweeping_ms=3_000, tagged_ms=4_000)))
    assert (statuses("logs/1"), statuses("data/1")) == ([410] * 3, [200] * 3)
    (listed,) = asgi("GET", f"/repositories/tagged/refs/{old}/objects/ls").json()["results"]
    assert listed["path"] == "data/1", "main keeps it"
    assert asgi("GET", f"/repositories/tagged/commits/{old}").json()["state"] == "tagged"
    (listed,) = asgi("GET", "/repositories/tagged/gc/marks/commits").json()["results"]
    assert (listed["tagged"], listed.get("swept")) == (4, None)
    assert asgi("GET", "/repositories/tagged/refs/main/objects", params={"path": "data/1"}).content == b"data"
