"""What an upload costs the KV: bulk uploads against bare Lua calls, and round trips, counted on the wire.

Measured is `Repository.upload_many` over a store that drops bodies: the branch read, the reference and the entry of
each object, the token check, and all that the SDK does around them (paths checked, ids and checksums made, records
encoded, threads that would write bodies). The floor is what somebody who only wants the keys could do: redis-py, two
EVALSHA for each object, 500 in a pipeline, each setting one plain key to a value of the same size.
"""

# pyright: reportUnknownMemberType=false
# redis-py leaves some of its commands untyped.

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import redis

from bench import lakes
from bench.measure import Row, Series, at_least, at_most, in_turns, rates, seconds_of
from bench.workshop import Workshop
from refstore.core.ids import BranchName, Path
from refstore.kv.base import Key
from refstore.operations.upload import BATCH
from refstore.public_types import stored_entry
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import Listed, Reference
from refstore.repository import Repository

FACTOR = 0.5
ROUND_TRIPS = 3
SET = "return redis.call('SET', KEYS[1], ARGV[1])"


def run(shop: Workshop) -> Iterator[Row]:
    count, turns = shop.scale.booked, shop.scale.turns
    server = shop.redis()
    shuffled = list(range(turns * count))
    random.Random(1).shuffle(shuffled)
    with (
        lakes.open_lake(server.url, "memory://bookkeeping", lakes.nowhere) as lake,
        contextlib.closing(bare(server.port, db=1)) as floor,
    ):
        repo = lake.create_repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", [0])  # connected, and every module loaded
        for order, numbers in (("in path order", range(turns * count)), ("in random order", shuffled)):
            shop.say(f"bookkeeping: {turns} x {count:,} uploads {order}")
            branch = order.replace(" ", "-")
            repo.create_branch(branch, source="main")
            pairs = plain_pairs(repo, branch, count)
            ours, theirs = in_turns(
                turns,
                lambda turn, numbers=numbers, branch=branch: seconds_of(
                    lambda: lakes.upload(repo, branch, numbers[turn * count : (turn + 1) * count])
                ),
                lambda _turn, pairs=pairs: set_plain(floor, pairs),
            )
            yield Row(
                what=f"bookkeeping of uploads {order}, one client, Redis",
                ours=Series(tuple(2 * count / each for each in ours), "keys/s"),
                other=rates(2 * count, theirs, "keys/s"),
                other_name=f"bare Lua SETs by EVALSHA, {BATCH} in a pipeline",
                bar=at_least(FACTOR),
                note=f"a reference and an entry each; upload_many by {BATCH}",
            )
        yield two_at_once(shop, repo, floor, shuffled)
    yield from round_trips(shop, server.port)


def two_at_once(shop: Workshop, repo: Repository, floor: redis.Redis, numbers: Sequence[int]) -> Row:
    """Two threads of one process, each with every other object: while one waits for Redis, the other prepares."""
    count, turns = shop.scale.booked, shop.scale.turns
    shop.say(f"bookkeeping: {turns} x {count:,} uploads by two threads")
    repo.create_branch("two-threads", source="main")
    pairs = plain_pairs(repo, "two-threads", count)

    def both(turn: int) -> float:
        mine = numbers[turn * count : (turn + 1) * count]

        def upload(thread: int) -> None:
            lakes.upload(repo, "two-threads", mine[thread::2])

        with ThreadPoolExecutor(2) as pool:
            return seconds_of(lambda: list(pool.map(upload, range(2))))

    ours, theirs = in_turns(turns, both, lambda _turn: set_plain(floor, pairs))
    return Row(
        what="bookkeeping of uploads in random order, two threads of one process, Redis",
        ours=Series(tuple(2 * count / each for each in ours), "keys/s"),
        other=rates(2 * count, theirs, "keys/s"),
        other_name=f"bare Lua SETs by EVALSHA, {BATCH} in a pipeline, one thread",
    )


def bare(port: int, *, db: int = 0) -> redis.Redis:
    return redis.Redis(port=port, db=db, protocol=2)


def plain_pairs(repo: Repository, branch: str, count: int) -> list[tuple[str, bytes]]:
    """For each object two keys and values, as long as its reference's and its entry's."""
    entry = stored_entry(repo.upload_many(branch, lakes.uploads([count]))[0])
    token = repo.context.branches.read_open(BranchName(branch)).record.token
    path = Path(lakes.path_of(0))
    reference = encode(Listed((Reference(token, path),), entry.mtime_ms))
    sized: list[tuple[Key, bytes]] = [
        (keys.reference(repo.context.repo, entry.address), reference),
        (keys.entry(repo.context.repo, token, path), encode(entry)),
    ]
    return [
        (f"{kind}{number:07d}{(key.partition + key.name)[8:]}", value)
        for number in range(count)
        for kind, (key, value) in enumerate(sized)
    ]


def set_plain(client: redis.Redis, pairs: Sequence[tuple[str, bytes]]) -> float:
    client.flushdb()
    script = client.script_load(SET)

    def work() -> None:
        for start in range(0, len(pairs), BATCH):
            pipeline = client.pipeline(transaction=False)
            for key, value in pairs[start : start + BATCH]:
                pipeline.evalsha(script, 1, key, value)
            pipeline.execute()

    return seconds_of(work)


def round_trips(shop: Workshop, port: int) -> Iterator[Row]:
    """Of single operations on a warm connection."""
    with (
        Counting(port) as counting,
        lakes.open_lake(f"redis://127.0.0.1:{counting.port}/0", "memory://trips", lakes.nowhere) as lake,
    ):
        repo = lake.create_repository("trips")
        repo.upload("main", "warm/up", b"")
        for what, bar in (("a single upload", at_most(ROUND_TRIPS)), ("an upload that replaces a staged object", None)):
            counts: list[float] = []
            for turn in range(shop.scale.steps):
                before = counting.trips
                repo.upload("main", f"single/{turn:04d}", b"")
                counts.append(float(counting.trips - before))
            yield Row(
                what=f"KV round trips of {what}",
                ours=Series(tuple(counts), "round trips"),
                bar=bar,
                note="turns of a TCP proxy",
            )


class Counting:
    """A TCP proxy before Redis that counts round trips: how often the client speaks after the server has."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.trips = 0
        self._clients_turn: set[int] = set()
        """Connections on which the server spoke last, or nobody yet."""
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to_port))
                self._sockets += [client, server]
                number += 1
                self._clients_turn.add(number)
                for source, sink, speaks in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(number, source, sink, speaks), daemon=True).start()

    def _pass(self, number: int, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    if not from_client:
                        self._clients_turn.add(number)
                    elif number in self._clients_turn:
                        self._clients_turn.remove(number)
                        self.trips += 1
                sink.sendall(data)
