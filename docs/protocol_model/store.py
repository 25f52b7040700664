"""Single-key primitives over one immutable store, the records in it, and the retry layer.

get k · open k (a branch record; closed ones read as absent) · scan prefix -> keys
set k v · cas k old new (None: absent) · cas k old new ONCE · swap k v -> old · del k
put P · rm P · head P -> whether it is there · blobs -> addresses · barrier (waits for the operations that have begun)
join P parts numbers -> whether P is there: made of its parts, if they are all there and it was not there yet

("repo",)          OPEN | CLOSED            ("t", token)        "new" | "processed"
("b", branch)      Branch | Closed          ("c", commit)       Commit
("e", token, path) Entry | TOMB | Tomb      ("l", commit)       landed
("r", address)     ("refs", {Ref}) | ISSUED | DEAD              ("x", commit)  marked by the gc
                   of a multipart upload: UPLOADING, with the numbers of the parts once they are joined | DEAD_PARTS
("u", address)     the registry of multipart uploads: OPEN | CLOSED | ("completed", numbers)
("p", address, number, part address)  a part of it that is written
("d", address)     due hint                 ("gc",)             the gc run that marks now
("mc", commit)     its tokens               ("g", run)          its record
("md", token)      deleted marker           ("pin", run, address) what it must keep
("tag", name)      Tag
("on",)           content may lie elsewhere than its identity says
("loc", identity) Location: where its content lies
("~clock",)       what the clocks show, in the scenarios of times: ENDING, then OVER; in those of pruning a number
In a store that refstore does not own (pruning.py), which has no "t", "r", "d" and "x" means expired:
("o", key)        an object        ("link", address) until when it may be named   ("began", address) upload in parts
("lock",)         the pruning run  ("marks", run)    what it found unnamed
("~landed", commit) is the explorer's own note of what became a head; no flow reads it.
("~joined", address)  the numbers of the parts that its blob was made of; an entry's ETag says it

A KV that loses writes (losses.py): snap shard -> what it holds · back shard held (it holds that again; its identity
changes) · back shard held QUIETLY (the identity stays) · switch shard (only the identity changes)

("at", shard, deleter) a deleter's position      ("~id", shard)   the identity of the server that answers for a shard
("~w", deleter)   its witness, in the object store    ("~m", commit)   manifest entry: acknowledged, not confirmed yet
("~t", tag, commit, id), ("~untagged", tag, commit, id), ("~gone", branch, incarnation): the same of tags and deletions
("~run", run)     the identities that a gc run saw
("~a", commit)    the same, confirmed             ("~blobs",)      what was there at the start
("~l", identity)  manifest entry: where its content lay when a run was acknowledged
("~p", address, id) manifest entry of a witnessed link or restore: its reference; ("~pa", ...): confirmed
("~issued", address) in the manifest's entry of a link whose entry names a copy: the address that was linked
("~excused",)     addresses that no fence could have saved
("~freed", address, id) the explorer's own note: somebody released this reference
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from random import Random
from typing import Any, NamedTuple

Key = tuple[str, ...]
Op = tuple[Any, ...]
Steps = Generator[Op, Any, Any]

TOMB = "TOMB"
OPEN, CLOSED = "open", "closed"
NEW, PROCESSED = "new", "processed"
ENDING, OVER = "ending", "over"
"""ENDING: the deleter's clock is past what an issued address is valid for, and past a window shorter than the
repository's; the clock of who links may be behind. OVER: past all of it, by every clock.
"""
DELETED = "deleted"
"""A retired token's fate, where it is not a commit's id."""
LOST = "LOST"
"""The reply did not come; the write landed, or did not."""
ONCE = "once"
"""Behind a cas: it is not made again where its reply was lost, nor looked for; the flow hears LOST."""
QUIETLY = "quietly"
MUTATING = frozenset(("set", "cas", "swap", "del", "put", "rm", "join"))


class Ref(NamedTuple):
    token: str
    path: str
    id: str | None
    """New for every placement, so that releasing one entry's reference can never take off another's."""


class Entry(NamedTuple):
    address: str
    id: str | None
    """The id of its reference; None: the address is committed and the entry has no reference."""


class Tomb(NamedTuple):
    """A move's tombstone."""

    id: str


class Branch(NamedTuple):
    head: str
    token: str
    sealed: tuple[str, ...]
    """Oldest first."""
    retired: tuple[tuple[str, str], ...]
    """(token, DELETED or the commit that took it)."""
    born: str
    """The incarnation: the token that the branch was created with."""
    lease: str | None = None
    """Of a transaction's branch: the id of the last renewal."""


class Closed(NamedTuple):
    retired: tuple[tuple[str, str], ...]
    born: str


class Tag(NamedTuple):
    commit: str
    id: str
    """New for every tag: one that was deleted explains nothing of another one."""


class Commit(NamedTuple):
    parents: tuple[str, ...]
    tree: frozenset[tuple[str, str]]
    added: frozenset[str]
    """Addresses that the first parent does not have."""
    tokens: tuple[str, ...]
    """The sealed tokens that it was made from."""


class Location(NamedTuple):
    current: str
    """The address of the content; GONE while the identity is being deleted."""
    intent: str | None
    """Where a run is about to write."""
    backups: tuple[str, ...]
    """What was replaced, oldest first."""
    left: tuple[str, ...]
    """What goes next."""
    n: int
    """How often the content was replaced."""


GONE = "gone"


def refs(*held: Ref) -> tuple[str, frozenset[Ref]]:
    return ("refs", frozenset(held))


EMPTY = refs()
ISSUED = ("issued",)
UPLOADING = ("issued", "parts")
DEAD = ("dead",)
DEAD_PARTS = ("dead", "parts")
"""The address of a multipart upload that was aborted, or has expired: the store is asked for its upload."""


def is_issued(value: Any) -> bool:
    return value is not None and value[0] == "issued"


def is_uploading(value: Any) -> bool:
    return is_issued(value) and value != ISSUED


def dead_after(value: Any) -> tuple[str, ...]:
    """What an address becomes that goes."""
    return DEAD_PARTS if is_uploading(value) else DEAD


def upload_of(blob: str) -> str:
    """The address of the upload whose part it is, or which the store keeps; itself if it is neither."""
    return blob.partition("/")[0].rstrip("~")


def pending(address: str) -> str:
    """What the store itself keeps of an upload that it began."""
    return f"{address}~"


def listed(value: Any) -> bool:
    return value is not None and value[0] == "refs"


def branch_of(token: str) -> str:
    """A token's id says which branch it belongs to."""
    return token.partition(":")[0]


_numbers = Random(1)  # noqa: S311  # fingerprints, not secrets
_zobrist: dict[Any, int] = {}


def number(item: Any) -> int:
    found = _zobrist.get(item)
    if found is None:
        found = _zobrist[item] = _numbers.getrandbits(80)
    return found


def in_shard(key: Key, shard: str) -> bool:
    """`shard`: the kinds of its keys, such as "rd"; "-rd": all other kinds; "-": all. A position names its shard."""
    if key[0].startswith("~"):
        return False  # the object store, and the explorer's notes
    if key[0] == "at":
        return key[1] == shard
    kinds = shard.lstrip("-").split("+")
    return (key[0] in kinds) != shard.startswith("-")


def holds_what_is_witnessed(kv: dict[Key, Any]) -> bool:
    for key, witness in kv.items():
        if key[0] == "~w" and any((kv.get(("at", shard, key[1])) or 0) < number for shard, number in witness.positions):
            return False
    return True


class Witness(NamedTuple):
    positions: tuple[tuple[str, int], ...]
    """(shard, the position that the deleter had written there)."""
    identities: tuple[int, ...]
    """Under which it deletes: of the servers that answer for each shard."""


class Store:
    """Immutable: `apply` answers a new store, or this one where nothing changed. `fingerprint` is kept
    incrementally.
    """

    __slots__ = ("blobs", "fingerprint", "kv")

    def __init__(self, kv: dict[Key, Any], blobs: frozenset[str], fingerprint: int | None = None) -> None:
        self.kv = kv
        self.blobs = blobs
        if fingerprint is None:
            fingerprint = 0
            for item in kv.items():
                fingerprint ^= number(item)
            for blob in blobs:
                fingerprint ^= number(blob)
        self.fingerprint = fingerprint

    def apply(self, op: Op) -> tuple[Store, Any]:
        kind = op[0]
        if kind == "get":
            return self, self.kv.get(op[1])
        if kind == "open":
            value = self.kv.get(op[1])
            return self, value if isinstance(value, Branch) else None
        if kind == "cas":
            if self.kv.get(op[1]) != op[2]:
                return self, False
            return self._write(op[1], op[3]), True
        if kind == "scan":
            prefix = op[1]
            size = len(prefix)
            return self, tuple(sorted(key for key in self.kv if key[:size] == prefix))
        if kind == "swap":
            return self._write(op[1], op[2]), self.kv.get(op[1])
        if kind == "set":
            return self._write(op[1], op[2]), None
        if kind == "del":
            return self._write(op[1], None), None
        if kind == "put":
            return self if op[1] in self.blobs else Store(
                self.kv, self.blobs | {op[1]}, self.fingerprint ^ number(op[1])
            ), None
        if kind == "rm":
            return self if op[1] not in self.blobs else Store(
                self.kv, self.blobs - {op[1]}, self.fingerprint ^ number(op[1])
            ), None
        if kind == "head":
            return self, op[1] in self.blobs
        if kind == "join":
            if op[1] in self.blobs or not self.blobs.issuperset(op[2]):
                return self, op[1] in self.blobs
            return self.apply(("put", op[1]))[0]._write(("~joined", op[1]), op[3]), True
        if kind == "blobs":
            return self, tuple(sorted(self.blobs))
        if kind == "barrier":
            return self, None
        if kind == "snap":
            return self, frozenset(item for item in self.kv.items() if in_shard(item[0], op[1]))
        if kind == "back":
            return self._back(op[1], dict(op[2]), quietly=op[-1] == QUIETLY), None
        if kind == "switch":
            return self._write(("~id", op[1]), self.kv.get(("~id", op[1]), 0) + 1), None
        raise ValueError(op)

    def _write(self, key: Key, value: Any) -> Store:
        old = self.kv.get(key)
        if old == value:
            return self
        kv = dict(self.kv)
        fingerprint = self.fingerprint
        if old is not None:
            fingerprint ^= number((key, old))
        if value is None:
            del kv[key]
        else:
            kv[key] = value
            fingerprint ^= number((key, value))
        store = Store(kv, self.blobs, fingerprint)
        if key[0] == "b" and isinstance(value, Branch) and isinstance(old, Branch) and old.head != value.head:
            return store._write(("~landed", value.head), True)
        return store

    def _back(self, shard: str, held: dict[Key, Any], *, quietly: bool) -> Store:
        """The shard holds what it held. If the loss is witnessed, what was being deleted, or is gone, is excused."""
        leaving = {key[1] for key, value in self.kv.items() if key[0] == "r" and value == DEAD}
        for key, value in self.kv.items():
            if key[0] == "g" and value.state == "sweeping":
                leaving |= {*value.candidates}
        store = self
        for key in [key for key in self.kv if in_shard(key, shard) and key not in held]:
            store = store._write(key, None)
        for key, value in held.items():
            store = store._write(key, value)
        if not quietly:
            store = store._write(("~id", shard), self.kv.get(("~id", shard), 0) + 1)
        if not holds_what_is_witnessed(store.kv):
            named = {value.address for value in store.kv.values() if isinstance(value, Entry)}
            once = named | {key[1] for key in store.kv if key[0] == "r"} | self.kv.get(("~blobs",), frozenset())
            gone = once - self.blobs
            store = store._write(("~excused",), frozenset(leaving | gone) | self.kv.get(("~excused",), frozenset()))
        return store

    def having(self, pairs: Iterable[tuple[Key, Any]], blobs: Iterable[str] = ()) -> Store:
        """This store with other values at some keys; for scenarios."""
        return Store({**self.kv, **dict(pairs)}, self.blobs | frozenset(blobs))


def each(*ops: Op) -> Steps:
    """A pipelined batch: one op after the other, each a step of its own; their replies."""
    replies = []
    for op in ops:
        replies.append((yield op))  # noqa: PERF401  # a comprehension cannot yield
    return replies


class Retry:
    """Stands between a flow and the store, and turns a lost reply into an answer, where an answer can be had.

    Protocol: When a reply is lost.

    The write landed, or it did not, or it lands later, because the request is still under way. The retry layer below
    all flows decides by the kind of write:

    - **`set` and `delete`** are made again.
    - **`set_if`** is made again. If the second one is refused, the layer reads the key: if the new value is there, the
      first one landed. This works because expected values never come back: branch records carry a write id, entries and
      references an id, and lists the time at which they changed.
    - **`set_if(ABSENT -> x)`** is looked for, and **never made again**. It may have landed, been deleted, and been
      processed meanwhile. Made again, it would bring a dead token to life, or reuse an address whose blob another
      reaper is about to delete because it read `deleting`. If nothing is at the key, the flow takes a new address or
      token.
    - **`exchange`** is **never made again as it is**. Since the first one landed, others may have replaced its entry
      and released its reference. The flow goes round as if its token had moved: a new reference, and then an entry that
      carries it. (If the token is still current when it is read *after* the list, and the old reference is no longer on
      the list, then the entry had landed and was replaced. The answer is ok.)
    - **A placement that may only go where nothing is** expects ABSENT or a tombstone, and both can come back. Its
      `set_if` is never made again either; rule 20 says how it goes on.
    - **A refusal does not mean "never landed".** A flow that is refused reads what is there (rules 3 and 18).

    A late write endangers no blob that is named. But it may show the older upload over a newer one, and a caller
    without a reply that goes round writes later than it began.

    *Shown by* `SwapsAgain`, `AnswersTooSoon`, `CreatesAgain`.
    """

    create_again = False
    """Whether what was to be created is created again after a lost reply. It may have landed, and been deleted and
    processed since: a token would live again, or an address whose blob is on its way out would be reused. So it is
    looked for, and where nothing stands the flow is told no, and takes a new name. Other expected values never come
    back once they are replaced.
    """

    makes_all_again = False
    """Whether a cas is made again although it asks to be made once."""

    def retrying(self, steps: Steps) -> Steps:
        try:
            op = steps.send(None)
            while True:
                reply = yield op
                while reply is LOST and op[0] in ("set", "del", "put", "rm", "join"):
                    reply = yield op
                if reply is LOST and op[0] == "cas" and (op[-1] != ONCE or self.makes_all_again):
                    reply = yield from self._cas_again(op)
                op = steps.send(
                    reply
                )  # a swap whose reply was lost goes back to the flow, and so does what is made once
        except StopIteration as end:
            return end.value

    def _cas_again(self, op: Op) -> Steps:
        _, key, old, new = op[:4]
        if old is None and not self.create_again:
            return (yield ("get", key)) == new
        while True:
            reply = yield op
            if reply is not LOST:  # looking after it rather than before also finds a first attempt that landed late
                return reply or (yield ("get", key)) == new
