"""What it costs to write to the manifest what must survive the KV: one object for each commit, and for each link if
`safety.witness` is "always".

Ours is the call as it is. The floor of a commit is the same commit while `Manifest.add` does nothing, that of a
witnessed link the same link without the setting. Both sides take turns, call by call, on one branch of one lake, whose
KV is SQLite on a disk that it syncs to. What a call needs is staged, issued and put beside the clock.

Proxies before Redis and before the S3 server count how often the same calls ask each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple
from unittest.mock import patch

from bench import lakes
from bench.bookkeeping import Counting
from bench.measure import Row, Series, at_most, in_turns, seconds_of
from bench.workshop import Workshop
from refstore.core.safety import Safety
from refstore.kv import open_kv
from refstore.lake import Lake, open_lake_at
from refstore.operations.upload import Upload
from refstore.repository import Repository
from refstore.versioning.manifest import Manifest
from tests.servers.s3_proxy import S3FaultProxy

OBJECTS = 5
"""How many are staged for a commit."""
WITNESSING = Safety(witness="always")
WARM_UP = 3
"""How many calls each side makes first, so that it is connected and has loaded every module."""

Call = Callable[[], object]


class Sides(NamedTuple):
    """Makes one call with its entry in the manifest, and without it."""

    what: str
    without: str
    """What the floor is called."""
    ours: Callable[[], Call]
    """Prepares a call, and returns it."""
    floor: Callable[[], Call]
    floor_within: Callable[[], AbstractContextManager[object]]
    """What the floor's call is made in."""


def run(shop: Workshop) -> Iterator[Row]:
    yield from times(shop)
    yield from requests(shop)


def times(shop: Workshop) -> Iterator[Row]:
    places = (
        ("SQLite and local files on disk", lakes.stores_in(shop.on_disk("manifest"))),
        (f"SQLite on disk and {shop.s3_name()}", (lakes.stores_in(shop.on_disk("manifest"))[0], shop.s3().url())),
    )
    for place, (kv_url, objects_url) in places:
        with (
            open_lake_at(kv_url, objects_url) as lake,
            open_lake_at(kv_url, objects_url, safety=WITNESSING) as witnessing,
        ):
            lake.create_repository(lakes.REPOSITORY)
            for sides in _sides(lake, witnessing):
                shop.say(f"manifest: {sides.what}, {place}")
                ours, floor = _there_and_back(shop.scale.calls, sides)
                yield Row(
                    what=f"{sides.what}, {place}",
                    ours=_milliseconds(ours),
                    other=_milliseconds(floor),
                    other_name=sides.without,
                )


def requests(shop: Workshop) -> Iterator[Row]:
    """Count what the calls ask of Redis, and put into the S3 server."""
    with Counting(shop.redis().port) as redis, S3FaultProxy(shop.s3().endpoint) as s3:
        kv_url, objects_url = f"redis://127.0.0.1:{redis.port}/0", shop.s3().url(endpoint=s3.endpoint)
        with (
            lakes.open_lake(kv_url, objects_url) as lake,
            Lake(open_kv(kv_url), objects_url, safety=WITNESSING) as witnessing,
        ):
            lake.create_repository(lakes.REPOSITORY)

            def count(call: Call) -> tuple[int, int]:
                """Return the object store's PUTs and the KV's round trips of a call."""
                s3.log.clear()
                before = redis.trips
                call()
                return sum(request.is_put_object for request, _ in list(s3.log)), redis.trips - before

            for sides in _sides(lake, witnessing):
                shop.say(f"manifest: requests of a {sides.what}")
                counts: list[tuple[tuple[int, int], tuple[int, int]]] = []
                for _ in range(WARM_UP + shop.scale.steps):
                    ours = count(sides.ours())
                    call = sides.floor()
                    with sides.floor_within():
                        counts.append((ours, count(call)))
                for which, (unit, most) in enumerate((("PUTs", 1), ("round trips", 0))):
                    pairs = [(ours[which], floor[which]) for ours, floor in counts[WARM_UP:]]
                    more = tuple(float(ours - floor) for ours, floor in pairs)
                    assert unit != "PUTs" or min(more) >= 1, f"{sides.what} wrote no entry: {pairs}"
                    yield Row(
                        what=f"{'KV ' if unit != 'PUTs' else ''}{unit} that the manifest adds to a {sides.what}",
                        ours=Series(more, unit),
                        bar=at_most(most),
                        note=f"{_range(ours for ours, _ in pairs)}, {_range(floor for _, floor in pairs)} without",
                    )


def _sides(lake: Lake, witnessing: Lake) -> Iterator[Sides]:
    repo, other = lake.repository(lakes.REPOSITORY), witnessing.repository(lakes.REPOSITORY)
    assert (repo.context.safety.witness, other.context.safety.witness) == ("commits", "always")
    numbers = itertools.count()
    yield Sides(
        f"commit of {OBJECTS} staged objects",
        "without its entry in the manifest",
        lambda: _staged(repo, numbers),
        lambda: _staged(repo, numbers),
        _nothing_written,
    )
    yield Sides(
        "link with safety.witness = always",
        "without the setting",
        lambda: _issued(other, numbers),
        lambda: _issued(repo, numbers),
        nullcontext,
    )


def _staged(repo: Repository, numbers: Iterator[int]) -> Call:
    """Stage other objects at the same paths, and return their commit."""
    repo.upload_many(
        "main", [Upload(path=lakes.path_of(at), body=lakes.body_of(next(numbers))) for at in range(OBJECTS)]
    )
    return lambda: repo.commit("main", "a few")


def _issued(repo: Repository, numbers: Iterator[int]) -> Call:
    """Issue an address, put its object there, and return the link."""
    number = next(numbers)
    issued = repo.issue("main", f"linked/{number:06d}")
    repo.context.objects.put(issued.address, lakes.body_of(number))
    return lambda: repo.link("main", issued.path, issued.token)


@contextmanager
def _nothing_written() -> Generator[None, None, None]:
    with patch.object(Manifest, "add"):
        yield


def _there_and_back(turns: int, sides: Sides) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure both sides in the order A B B A, because what a call leaves to the disk slows the one that follows."""

    def ours(_turn: int) -> float:
        return seconds_of(sides.ours())

    def floor(_turn: int) -> float:
        call = sides.floor()
        with sides.floor_within():
            return seconds_of(call)

    first, second, third, fourth = (
        measured[WARM_UP:] for measured in in_turns(WARM_UP + turns // 2, ours, floor, floor, ours)
    )
    return first + fourth, second + third


def _milliseconds(seconds: tuple[float, ...]) -> Series:
    return Series(tuple(each * 1000 for each in seconds), "ms")


def _range(counts: Iterator[int]) -> str:
    found = sorted(set(counts))
    return f"{found[0]}" if len(found) == 1 else f"{found[0]}-{found[-1]}"
