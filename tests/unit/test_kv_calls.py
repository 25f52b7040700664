"""What an object's life costs the KV: counted here, and shown in the table of bench/costs.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from refstore.kv.base import SCAN_LIMIT, Op, Result
from refstore.operations.upload import IssuedAddress, Upload
from tests.reaper_world import GRACE_SECONDS, WatchedKV, World

TABLE = Path(__file__).parents[2] / "bench" / "costs.md"
MANY = 1000


@dataclass
class CountingKV(WatchedKV):
    calls: int = 0
    keys: Counter[str] = field(default_factory=Counter)
    """How many keys of references, due hints and staging areas were named, by the kind of operation."""

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self.calls += 1
        self.keys.update(
            type(op).__name__ for op in ops if any(f"/{kind}/" in op.key.partition for kind in ("references", "due"))
        )
        self.keys.update(type(op).__name__ for op in ops if "/staging/main:" in op.key.partition)
        return super().execute(ops)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        self.calls += 1
        return super().scan(partition, prefix=prefix, after=after, limit=limit)

    def delete_range(self, partition: str, first: str, last: str) -> None:
        self.calls += 1
        super().delete_range(partition, first, last)


class Counted:
    def __init__(self) -> None:
        self.world = World(breaker_share=1.0)
        self.kv = CountingKV(self.world.kv.inner)
        self.world.kv = self.kv
        self.world.lake.kv = self.kv
        self.world.repo = self.world.lake.repository("lake")
        self.world.upload("main", "warm", "other")
        self.world.repo.issue("main", "warm")  # the first one of a process reads the key that signs

    def row(self, what: str, objects: int, work: Callable[[], object]) -> str:
        """Return the row of the table."""
        self.kv.calls, self.kv.keys = 0, Counter()
        work()
        each = ", ".join(
            f"{count / objects:.2f} {kind}".replace(".00", "") for kind, count in sorted(self.kv.keys.items())
        )
        return f"| {what} | {self.kv.calls if objects == 1 else ''} | {each} |"


@pytest.fixture(scope="module")
def rows() -> list[str]:
    one = Counted()
    repo = one.world.repo
    many = Counted()
    uploads = [Upload(path=f"p{number:04d}", body=b"x") for number in range(MANY)]
    addresses: list[IssuedAddress] = []
    return [
        one.row("upload an object", 1, lambda: repo.upload("main", "new", b"1")),
        one.row("upload it again, over the staged one", 1, lambda: repo.upload("main", "new", b"2")),
        one.row("delete it", 1, lambda: repo.delete("main", "new")),
        one.row("take one staged path back", 1, lambda: repo.reset("main", path="other")),
        one.row("issue an address", 1, lambda: addresses.append(repo.issue("main", "linked"))),
        one.row("link it", 1, lambda: _link(one.world, addresses[0])),
        many.row(f"upload {MANY:,} at once", MANY, lambda: list(many.world.repo.upload_many("main", uploads))),
        many.row("reset the branch", MANY, lambda: many.world.repo.reset("main")),
        many.row("release them into grace", MANY, many.world.run_pass),
        many.row("delete them after it", MANY, lambda: _after_grace(many.world)),
    ]


def _link(world: World, issued: IssuedAddress) -> None:
    world.objects.inner.put(issued.address, b"x")
    world.repo.link("main", issued.path, issued.token)


def _after_grace(world: World) -> None:
    world.clock.advance(GRACE_SECONDS + 1)
    assert world.run_pass().deleted >= MANY


def test_the_table_shows_what_was_counted(rows: list[str]) -> None:
    shown = TABLE.read_text().splitlines()
    missing = [row for row in rows if row not in shown]
    assert not missing, "\n".join(missing)
