"""The stores that scenarios start from, by name. Two branches, main and feat, both at commit c0; tokens main:0 and
feat:0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import run
from .pruning import Object
from .store import (
    EMPTY,
    ENDING,
    ISSUED,
    NEW,
    OPEN,
    UPLOADING,
    Branch,
    Commit,
    Entry,
    Ref,
    Store,
    Witness,
    pending,
    refs,
)

Start = Callable[[type], Store]
"""The store, made with the protocol's class where calls have led to it."""


def world(*staged: tuple[str, str, str], committed: dict[str, str] | None = None, hinted: bool = True) -> Store:
    """staged: (branch, path, address).

    `hinted`: every address has a due hint from before, as may always be: so hard deletion may look at any of them at
    any time.
    """
    kv: dict[Any, Any] = {("repo",): OPEN}
    add_commit(kv, "c0", (), committed or {})
    for branch in ("main", "feat"):
        token = f"{branch}:0"
        kv[("b", branch)] = Branch("c0", token, (), (), token)
        kv[("t", token)] = NEW
    for branch, path, address in staged:
        ref = Ref(f"{branch}:0", path, "")
        kv[("e", ref.token, path)] = Entry(address, ref.id)
        kv[("r", address)] = refs(*kv.get(("r", address), EMPTY)[1], ref)
        if hinted:
            kv[("d", address)] = True
    return Store(kv, frozenset((committed or {}).values()) | {address for _, _, address in staged})


def add_commit(kv: dict[Any, Any], commit: str, parents: tuple[str, ...], tree: dict[str, str]) -> None:
    before = {address for _, address in kv[("c", parents[0])].tree} if parents else set()
    kv[("c", commit)] = Commit(parents, frozenset(tree.items()), frozenset(tree.values()) - before, ())
    kv[("l", commit)] = kv[("~landed", commit)] = True


def history(side: dict[str, str] | None = None) -> Store:
    """c0 {p: P0} <- c1 {q: P1}, both branches at c1; with `side`, feat at c2 on top of it."""
    store = world(committed={"p": "P0"})
    kv = dict(store.kv)
    add_commit(kv, "c1", ("c0",), {"q": "P1"})
    if side:
        add_commit(kv, "c2", ("c1",), side)
    for branch, head in (("main", "c1"), ("feat", "c2" if side else "c1")):
        kv[("b", branch)] = kv[("b", branch)]._replace(head=head)
    return Store(kv, store.blobs | {"P1"} | set((side or {}).values()))


def shared(own: dict[str, str] | None = None) -> Store:
    """c0 {p: P0} <- c1 {p: P0, q: P1} <- c2 {q: P1}, both branches at c2: two commits name P0. `own`: what c0 alone
    names.
    """
    store = world(committed={"p": "P0", **(own or {})})
    kv = dict(store.kv)
    add_commit(kv, "c1", ("c0",), {"p": "P0", "q": "P1"})
    add_commit(kv, "c2", ("c1",), {"q": "P1"})
    for branch in ("main", "feat"):
        kv[("b", branch)] = kv[("b", branch)]._replace(head="c2")
    return Store(kv, store.blobs | {"P1"})


def appended() -> Store:
    """c0 {p: P0} <- c1 {p: P0, q: P1}, both branches at c1: what c0 names is part of the head."""
    store = world(committed={"p": "P0"})
    kv = dict(store.kv)
    add_commit(kv, "c1", ("c0",), {"p": "P0", "q": "P1"})
    for branch in ("main", "feat"):
        kv[("b", branch)] = kv[("b", branch)]._replace(head="c1")
    return Store(kv, store.blobs | {"P1"})


def sealed(committed: dict[str, str] | None = None) -> Store:
    """A committer of main has sealed its first token, an upload of P2 to p is under way there, and P9 is issued."""
    late = Ref("main:0", "p", "late")
    store = world(committed=committed)
    return store.having(
        [
            (("b", "main"), Branch("c0", "main:1", ("main:0",), (), "main:0")),
            (("t", "main:1"), NEW),
            (("r", "P2"), refs(late)),
            (("r", "P9"), ISSUED),
            (("d", "P9"), True),
        ],
        ["P2", "P9"],
    )


def unnamed() -> Store:
    """The writer of P0 died between its reference and its entry."""
    store = world(("main", "p", "P0"))
    return Store({key: value for key, value in store.kv.items() if key[0] != "e"}, store.blobs)


def over(store: Store, path: str, address: str) -> Store:
    """With an upload staged on main."""
    ref = Ref("main:0", path, "")
    return store.having(
        [(("e", ref.token, path), Entry(address, ref.id)), (("r", address), refs(ref)), (("d", address), True)],
        [address],
    )


def unmarked(kind: type) -> Store:
    """The committer of c1 died between its advance and its landed mark."""
    return run(STORES["staged"], kind("start."), ("commit", "main", "c1")).apply(("del", ("l", "c1")))[0]


def uploading(*numbers: str) -> Store:
    """M1 is the address of a multipart upload with these parts."""
    parts = {number: f"M1/{number}" for number in numbers}
    records: dict[Any, Any] = {("u", "M1"): OPEN, ("r", "M1"): UPLOADING, ("d", "M1"): True}
    for number, part in parts.items():
        records |= {("p", "M1", number, part): True, ("r", part): ISSUED, ("d", part): True}
    return world().having(records.items(), [pending("M1"), *parts.values()])


def lake() -> Store:
    """A store of others: main and feat at c1 {q: P1}, upon c0 {p: P0}, which has expired. The clock shows 2."""
    kv: dict[Any, Any] = {("~clock",): 2, ("x", "c0"): True}
    add_commit(kv, "c0", (), {"p": "P0"})
    add_commit(kv, "c1", ("c0",), {"q": "P1"})
    for branch in ("main", "feat"):
        kv[("b", branch)] = Branch("c1", f"{branch}:0", (), (), f"{branch}:0")
    return Store(kv | {("o", address): Object("", 0) for address in ("P0", "P1")}, frozenset())


STORES: dict[str, Store] = {
    "lake": lake(),
    "empty": world(),
    "staged": world(("main", "p", "P0")),
    "staged-feat": world(("feat", "q", "P0")),
    "unnamed": unnamed(),
    "unnamed-ending": unnamed().having([(("~clock",), ENDING)]),
    "unhinted": world(("main", "p", "P0"), hinted=False),
    "shared": world(("main", "p", "P0"), ("feat", "q", "P0")),
    "pair": world(("main", "p", "P0"), ("main", "q", "P0")),
    "two": world(("main", "p", "P0"), ("main", "q", "P5")),
    "committed": world(committed={"p": "P0"}),
    "unmerged": world(("feat", "q", "Q1"), committed={"p": "P0"}),
    "issued": world().having([(("r", "P9"), ISSUED), (("d", "P9"), True)], ["P9"]),
    "committed-issued": world(committed={"p": "P0"}).having([(("r", "P9"), ISSUED), (("d", "P9"), True)], ["P9"]),
    "sealed": sealed(),
    "committed-sealed": sealed({"p": "P0"}),
    "issued-unhinted": world().having([(("r", "P9"), ISSUED)], ["P9"]),
    "uploading": uploading("1"),
    "uploading-two": uploading("1", "2"),
    "uploading-ending": uploading("1").having([(("~clock",), ENDING)]),
    "grace": world().having([(("r", "P5"), EMPTY), (("d", "P5"), True)], ["P5"]),
    "issued-ending": world().having([(("~clock",), ENDING), (("r", "P9"), ISSUED), (("d", "P9"), True)], ["P9"]),
    "grace-ending": world().having([(("~clock",), ENDING), (("r", "P5"), EMPTY), (("d", "P5"), True)], ["P5"]),
    "staged-ending": world(("main", "p", "P0")).having([(("~clock",), ENDING)]),
    "history": history(),
    "history-side": history({"q": "P1", "z": "P5"}),
    "history-line": shared(),
    "history-shared": shared({"z": "P6"}),
    "history-appended": appended(),
    "history-grace": history().having([(("r", "P5"), EMPTY), (("d", "P5"), True)], ["P5"]),
    "history-over": over(history(), "z", "P7"),
    "history-staged": history().having([(("e", "feat:0", "z"), Entry("P0", None))]),
}


def start(name: str, *calls: tuple[Any, ...], shards: tuple[str, ...] = ()) -> Start:
    """The named store, after `calls` have run undisturbed. With `shards`, a deleter has witnessed each of them."""
    if name == "unmarked":
        return unmarked
    store = STORES[name]
    if shards:
        witness = Witness(tuple((shard, 1) for shard in shards), tuple(0 for _ in shards))
        store = store.having([
            (("~w", "D"), witness),
            (("~blobs",), store.blobs),
            *((("at", shard, "D"), 1) for shard in shards),
            *((("~id", shard), 0) for shard in shards),
        ])  # fmt: skip
    return lambda kind: run(store, kind("start.", shards=shards), *calls)
