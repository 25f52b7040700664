"""The servers behind a Redis URL, and a pool of connections to each: one server, the master that Sentinels name, or the
nodes of a Cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from threading import Lock
from typing import Any, NamedTuple, Protocol, cast

import redis
import redis.crc
import redis.exceptions

from refstore.errors import KVRefused, KVUnavailable, StoreMisconfigured
from refstore.kv.base import POSITIONS
from refstore.kv.redis.commands import Command, Reply
from refstore.kv.redis.url import ServerAddress


class RedisConnection(Protocol):
    """The part of redis-py's connections that the driver uses. redis-py itself types only half of it."""

    def on_connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]: ...

    def send_packed_command(self, command: Iterable[bytes]) -> None: ...

    def read_response(self) -> Reply: ...


class ConnectionPool(Protocol):
    """A pool of connections to one server."""

    def get_connection(self) -> RedisConnection: ...

    def release(self, connection: RedisConnection) -> None: ...

    def disconnect(self) -> None: ...


class SingleServer:
    """One server. If the pool uses Sentinels, it is the current master."""

    is_ordered = True
    """Whether all keys are on one server, so that commands are performed in the order in which they are sent."""

    def __init__(self, pool: ConnectionPool, *, find_master: Callable[[], object] = lambda: None) -> None:
        """`find_master` makes sure that the pool connects to the master of now."""
        self._pool = pool
        self._find_master = find_master

    def pool_of(self, key: bytes) -> ConnectionPool:  # noqa: ARG002  # one server has all keys
        return self._pool

    def pool_at(self, address: ServerAddress) -> ConnectionPool:
        raise StoreMisconfigured(
            f"the Redis is a node of a cluster (it points to {address}); use a redis+cluster:// URL"
        )

    def pools_of_positions(self, key_of: Callable[[str], bytes]) -> dict[str, ConnectionPool]:  # noqa: ARG002  # as pool_of
        self._find_master()
        return {POSITIONS: self._pool}

    def forget_slot_map(self) -> None:
        return

    def close(self) -> None:
        self._pool.disconnect()


class RedisCluster:
    """Keeps the map of slots, and a pool for each node. Any node can give the map. It is read again when it proves
    wrong.
    """

    is_ordered = False

    def __init__(self, seeds: Sequence[ServerAddress], pool_to: Callable[[ServerAddress], ConnectionPool]) -> None:
        self._seeds = tuple(seeds)
        self._pool_to = pool_to
        self._lock = Lock()
        self._pools: dict[ServerAddress, ConnectionPool] = {}
        self._owners: list[ServerAddress | None] = []
        """The owner of each slot; empty: the map must be read."""
        self._turn = 0

    def pool_of(self, key: bytes) -> ConnectionPool:
        slot = redis.crc.key_slot(key)
        with self._lock:
            if not self._owners:
                self._read_map()
            owner = self._owners[slot]
            if owner is not None:
                return self._open_pool(owner)
            self._owners = []
        raise _slot_uncovered(slot)

    def pool_at(self, address: ServerAddress) -> ConnectionPool:
        with self._lock:
            return self._open_pool(address)

    def pools_of_positions(self, key_of: Callable[[str], bytes]) -> dict[str, ConnectionPool]:
        """Return each master of now, under the name of a partition that it stores. `key_of` gives the key of a
        partition.
        """
        with self._lock:
            ranges = self._read_map()
            owners = self._owners
            masters = {owner: self._open_pool(owner) for owner in owners if owner is not None}
        if None in owners:
            raise _slot_uncovered(owners.index(None))
        expected = _owners_by_id(ranges)
        for address, pool in masters.items():
            if _owners_by_id(_read_slots(pool, address)) != expected:
                raise KVUnavailable(
                    "the nodes of the cluster disagree on who holds which slots; wait until a failover or a move of "
                    "slots is done, then make the same call again",
                    nothing_done=True,
                )
        pools: dict[str, ConnectionPool] = {}
        names = (f"{POSITIONS}/{number:04}" for number in count())
        while masters:  # it ends: each slot is the slot of a name below positions/153192
            partition = next(names)
            owner = owners[redis.crc.key_slot(key_of(partition))]
            if owner is not None and owner in masters:
                pools[partition] = masters.pop(owner)
        return pools

    def forget_slot_map(self) -> None:
        """Read the map of slots again before the next use: it may be out of date."""
        with self._lock:
            self._owners = []

    def close(self) -> None:
        with self._lock:
            for pool in self._pools.values():
                pool.disconnect()

    def _open_pool(self, address: ServerAddress) -> ConnectionPool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = self._pool_to(address)
        return pool

    def _read_map(self) -> list[_SlotRange]:
        """Read the map of slots from the first node that answers, and return its ranges. Each call starts with another
        node, because a node that lost contact with the others may have an old map.
        """
        known = [*dict.fromkeys((*self._seeds, *self._pools))]
        self._turn += 1
        failure: Exception | None = None
        for place in range(len(known)):
            address = known[(place + self._turn) % len(known)]
            try:
                ranges = _read_slots(self._open_pool(address), address)
            except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
                raise KVRefused(
                    f"{address} refused us ({error}); check user, password and permissions (+cluster|slots)",
                    nothing_done=True,
                ) from error
            except redis.ResponseError as error:
                raise StoreMisconfigured(
                    f"{address} is not a node of a cluster ({error}); use redis:// for a single server"
                ) from error
            except (redis.RedisError, OSError) as error:
                failure = error
            else:
                owners: list[ServerAddress | None] = [None] * redis.crc.REDIS_CLUSTER_HASH_SLOTS
                for first, last, owner, _ in ranges:
                    owners[first : last + 1] = [owner] * (last + 1 - first)
                if ranges:
                    self._owners = owners
                    return ranges
        raise KVUnavailable(
            f"no node of the cluster answers ({failure or 'none owns a slot'}); tried {', '.join(map(str, known))};"
            " check that they run, then make the same call again",
            nothing_done=True,
        )


RedisServers = SingleServer | RedisCluster
"""Map a key to the server that stores it."""


def find_master(manager: Any, pool: Any) -> None:
    """Make `pool` connect to the master that the Sentinels name now. Raises KVUnavailable unless most of them answer
    and all that answer agree: during a failover, and behind a broken network, some still name the old master.
    """
    master = pool.get_master_address()  # closes idle connections if the master changed
    named: list[tuple[str, int] | None] = []
    failure: Exception | None = None
    for sentinel in manager.sentinels:
        try:
            reply = sentinel.sentinel_get_master_addr_by_name(pool.service_name)
            named.append((reply[0].decode() if isinstance(reply[0], bytes) else reply[0], reply[1]) if reply else None)
        except (redis.RedisError, OSError) as error:
            failure = error
    if 2 * len(named) <= len(manager.sentinels) or set(named) != {master}:
        raise KVUnavailable(
            f"the Sentinels do not agree on the master of {pool.service_name!r} ({len(named)} of "
            f"{len(manager.sentinels)} answered{f'; {failure}' if failure else ''}); wait until the failover is done, "
            "and check that they run, then make the same call again",
            nothing_done=True,
        )


class _SlotRange(NamedTuple):
    """A range of slots with one owner."""

    first: int
    last: int
    owner: ServerAddress
    node: bytes
    """The id of the owner, which is the same in the maps of all nodes; its address may differ."""


def _read_slots(pool: ConnectionPool, asked: ServerAddress) -> list[_SlotRange]:
    """Ask the node `asked` for its map of slots."""
    connection = pool.get_connection()
    try:
        connection.send_packed_command(connection.pack_commands([(b"CLUSTER", b"SLOTS")]))
        reply = connection.read_response()
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    ranges: list[_SlotRange] = []
    for first, last, (host, port, *rest), *_ in cast("list[tuple[int, int, list[Any]]]", reply):
        # A node that does not know its own name leaves it out. Then it is the node that answered.
        owner = ServerAddress(host.decode() if host else asked.host, port)
        ranges.append(_SlotRange(first, last, owner, rest[0] if rest else b""))
    return ranges


def _owners_by_id(ranges: Iterable[_SlotRange]) -> set[tuple[int, int, bytes]]:
    return {(first, last, node) for first, last, _, node in ranges}


def _slot_uncovered(slot: int) -> KVUnavailable:
    return KVUnavailable(
        f"no node of the cluster holds slot {slot}; wait until all slots are covered, then make the same call again",
        nothing_done=True,
    )
