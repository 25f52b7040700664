"""Stores that fail: wrappers around any KV and any object store, for tests over real drivers.

Faults are drawn from the random source that is passed in, so that a run is repeated by its seed. Three kinds, which a
client cannot tell apart by what it is told: the request was lost (nothing was done), the reply was lost (all of it was
done), and a batch was cut off in the middle. All are told as the drivers tell them: `KVUnavailable`,
`ObjectsUnavailable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from refstore.core.clock import Clock
from refstore.errors import InvalidSettings, KVUnavailable, ObjectsUnavailable, Unavailable
from refstore.kv.base import KV, Op, Result
from refstore.objects.base import Body, DeleteResult, ObjectInfo, ObjectStore, StoredObject
from tests.kit.forwarding import ForwardingKV, ForwardingObjects

_REFUSED: Final = "injected: the request was lost"
_LOST: Final = "injected: the reply was lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often each kind comes, of 1."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    batch_cut: float = 0.0
    """Of calls with several parts: the first ones are done, the others are not."""
    latency_seconds: float = 0.0
    """At most so much per call, taken from the clock that is passed in."""

    def __post_init__(self) -> None:
        if min(self.request_lost, self.reply_lost, self.batch_cut, self.latency_seconds) < 0 or (
            self.request_lost + self.reply_lost + self.batch_cut > 1
        ):
            raise InvalidSettings(f"{self} makes no sense; rates are not negative and at most 1 together")


class _Dice:
    def __init__(self, faults: Faults, random: Random, clock: Clock) -> None:
        self.faults = faults
        self._random = random
        self._clock = clock
        self.injected = 0

    def roll(self) -> str:
        """'', 'request', 'reply' or 'cut'."""
        faults = self.faults
        if faults.latency_seconds:
            self._clock.sleep(self._random.random() * faults.latency_seconds)
        drawn = self._random.random()
        for name, rate in (("request", faults.request_lost), ("reply", faults.reply_lost), ("cut", faults.batch_cut)):
            if drawn < rate:
                self.injected += 1
                return name
            drawn -= rate
        return ""

    def part(self, of: int) -> int:
        return self._random.randrange(of) if of else 0


class _Faulty:
    """`injected` counts the faults."""

    unavailable: type[Unavailable]

    def __init__(self, inner: Any, faults: Faults, random: Random, clock: Clock) -> None:
        self.inner = inner
        self._dice = _Dice(faults, random, clock)

    @property
    def injected(self) -> int:
        return self._dice.injected

    def check(self) -> None:
        """Let a read fail."""
        if self._dice.roll():
            raise self.unavailable(_REFUSED)


class FaultyKV(_Faulty, ForwardingKV):
    """Goes below `Retrying`, where drivers fail."""

    unavailable = KVUnavailable
    delete_range = KV.delete_range
    """By pages, each of which may fail."""

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        fault = self._dice.roll()
        if fault == "request":
            raise KVUnavailable(_REFUSED)
        if fault == "cut":
            self.inner.execute(list(ops)[: self._dice.part(len(ops))])
            raise KVUnavailable("injected: the batch was cut off")
        results = self.inner.execute(ops)
        if fault:
            raise KVUnavailable(_LOST)
        return results


class FaultyObjects(_Faulty, ForwardingObjects):
    unavailable = ObjectsUnavailable

    def begin(self, faults: Faults) -> None:
        """Make these faults from now on."""
        self._dice.faults = faults

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        fault = self._dice.roll()
        if fault in ("request", "cut"):
            raise ObjectsUnavailable(_REFUSED)
        done = self.inner.put(key, body, if_absent=if_absent)
        if fault:
            raise ObjectsUnavailable(_LOST)
        return done

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        """Breaks off in the middle rather than at the start: whoever reads it must not take that for its end."""
        fault = self._dice.roll()
        for number, info in enumerate(self._list_now(prefix, after)):
            if fault and number >= 1:
                raise ObjectsUnavailable("injected: the listing broke off")
            if before and info.key >= before:
                break
            yield info
        if fault:
            raise ObjectsUnavailable("injected: the listing broke off")

    def _list_now(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, after=after)

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        """A batch that is cut off says so key by key, as a store does."""
        fault = self._dice.roll()
        if fault == "request":
            raise ObjectsUnavailable(_REFUSED)
        if fault == "cut":
            at = self._dice.part(len(keys))
            done = self.inner.delete_many(keys[:at])
            return DeleteResult(
                done.deleted_keys, done.missing_keys, (*done.failed_keys, *((key, "injected") for key in keys[at:]))
            )
        done = self.inner.delete_many(keys)
        if fault:
            raise ObjectsUnavailable(_LOST)
        return done


class StaleObjects(FaultyObjects):
    """Its listings have pages as of an earlier time among those of now: what was deleted since is still in them, what
    is new is missing.

    No store whose listings are as of now does this; replicas and caches before one do.
    """

    def __init__(self, objects: ObjectStore, faults: Faults, random: Random, clock: Clock, *, page: int = 3) -> None:
        super().__init__(objects, faults, random, clock)
        self._pages = random
        self._page = page
        self._then: dict[str, ObjectInfo] | None = None
        self.stale = 0
        """Pages that were not as of now, and differed."""

    def remember(self) -> None:
        """From here on some pages show what there is at this moment."""
        self._then = {info.key: info for info in self.inner.list()}

    def forget(self) -> None:
        """From here on all pages are as of now again."""
        self._then = None

    def _list_now(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        now = {info.key: info for info in super()._list_now(prefix, after)}
        then = (
            now
            if self._then is None
            else {key: info for key, info in self._then.items() if key.startswith(prefix) and key > after}
        )
        keys = sorted(now.keys() | then.keys())
        for at in range(0, len(keys), self._page):
            page = keys[at : at + self._page]
            shown = then if self._pages.random() < 0.5 else now
            self.stale += shown is then and any((key in then) != (key in now) for key in page)
            yield from (shown[key] for key in page if key in shown)
