"""`redis://`, `rediss://`, `redis+sentinel://`, `redis+cluster://`: one Redis or Valkey, a master that Sentinels watch,
or a Cluster.

`redis_url.py` parses the URL. `redis_calls.py` defines how data is stored in Redis, and the commands. On a single
server a batch costs one round trip, including reads of any kind around its writes, because the commands of one
connection are performed in order. A second kind of write costs another round trip. On a Cluster each run of one kind
costs one round trip: the driver calls all its nodes at once, and the next run waits for all of them.

The driver retries nothing that may have been performed. A broken connection, a timeout, or a server that loads, fails
over or is out of memory raises `KVUnavailable`, and `Retrying` decides. The driver only follows MOVED and ASK, by which
the server says that it did nothing. Connections are reset, not closed, so that unsent data of a broken one is never
sent later.

The server must be set up for durability:

- `appendonly yes` with `appendfsync always`: an acknowledged write survives a power loss. With `everysec`, a common
  default, the last second may be lost; with snapshots only, minutes; with neither, everything. The loss may include the
  only references to a blob. After such a loss run the offline job before the reaper.
- A failover (Sentinel, Cluster, managed services) loses what the new master had not received. `?wait=N` makes each
  write wait for N replicas. It raises `KVUnavailable` (outcome unknown) if they do not confirm in time. That makes a
  loss rare, not impossible: with `appendfsync always` on all of them, and `min-replicas-to-write N` on the master, it
  takes two failures at once.
- `maxmemory-policy noeviction` (or `volatile-*`, because our keys have no time to live). The driver refuses a server
  that may evict any key.

`servers` tells a deleter whether another process answers than before, by two ids of each master: `run_id`, which a
restart changes, and `master_replid`, which a promotion changes. A master that was demoted and promoted again, and lost
writes on the way, still has its run_id. (A master also takes a new master_replid when its first replica comes, and an
hour after its last one went. Nothing is lost then, but the identity changes.) Each time the driver first asks the
Sentinels of the URL which server is the master, or all masters of a Cluster for the map of slots, and they must agree.
A master that was cut off from the others still says that it is the master.

The driver checks these settings at the first use of each connection. After CHECK_SECONDS the next use of the server
checks them again, because they may change while it runs. A server with wrong settings is refused, on open connections
too, until they are corrected. If the server does not show a setting, the driver warns once.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, cast

import redis
import redis.crc
import redis.exceptions
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from refstore.core.clock import Clock
from refstore.errors import InvalidSettings, KVUnavailable, RefstoreError, StoreMisconfigured
from refstore.kv import redis_calls, redis_url
from refstore.kv.base import KV, POSITIONS, SCAN_LIMIT, Op, Result, Server
from refstore.kv.redis_calls import Call, Command, Reply
from refstore.kv.redis_checks import Checks
from refstore.kv.redis_url import Address, RedisSettings

FLIGHT_BYTES: Final = 16 << 20
"""Bytes of arguments that are sent at once. A larger batch is sent in several flights, one after the other."""
PIECE_ARGUMENTS: Final = 256
"""A request is packed and sent in pieces of about so many arguments."""
CHECK_SECONDS: Final = 10.0
"""For how long one check of a server's settings is valid."""
REDIRECTIONS_MAX: Final = 5
"""How often MOVED or ASK is followed before `Retrying` decides."""


class Connection(Protocol):
    """The part of redis-py's connections that the driver uses. redis-py itself types only half of it."""

    def on_connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]: ...

    def send_packed_command(self, command: Iterable[bytes]) -> None: ...

    def read_response(self) -> Reply: ...


class Pool(Protocol):
    """A pool of connections to one server."""

    def get_connection(self) -> Connection: ...

    def release(self, connection: Connection) -> None: ...

    def disconnect(self) -> None: ...


class Servers(Protocol):
    """Maps a key to the server that stores it."""

    ordered: bool
    """Whether all keys are on one server, so that commands are performed in the order in which they are sent."""

    def pool_of(self, key: bytes) -> Pool: ...

    def pool_at(self, address: Address) -> Pool: ...

    def pools_of_positions(self, key_of: Callable[[str], bytes]) -> dict[str, Pool]:
        """Return each master of now, under the name of a partition that it stores. `key_of` gives the key of a
        partition.
        """
        ...

    def forget(self) -> None:
        """Read the map of slots again before the next use: it may be out of date."""
        ...

    def close(self) -> None: ...


def open_redis(url: str, clock: Clock) -> RedisKV:
    """Open the KV of a Redis URL. Connects to nothing yet. Raises InvalidSettings."""
    settings = redis_url.parse(url)
    prepared = _Prepared(settings)
    options: dict[str, Any] = {
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": settings.socket_timeout_seconds,
        "socket_connect_timeout": settings.socket_connect_timeout_seconds,
        "socket_keepalive": True,
        "protocol": 2,
        # No retries by redis-py: it does not know whether a write that was sent may be sent again.
        "retry": Retry(NoBackoff(), 0),
        "redis_connect_func": prepared,
    }
    if settings.tls:
        options |= {"connection_class": redis.SSLConnection, **dict(settings.tls_options)}
    return RedisKV(_servers(settings, options), settings, clock, check_server=prepared.check_server)


def _servers(settings: RedisSettings, options: dict[str, Any]) -> Servers:
    if settings.kind == "cluster":
        return Cluster(
            settings.addresses, lambda at: cast(Pool, redis.ConnectionPool(host=at.host, port=at.port, **options))
        )
    if settings.kind == "sentinel":
        options.pop("connection_class", None)
        options |= {"ssl": settings.tls}
        sentinel_options = {name: value for name, value in options.items() if name != "redis_connect_func"}
        sentinel_options |= {"username": settings.sentinel_username, "password": settings.sentinel_password}
        manager = cast(Any, redis.sentinel.Sentinel([*settings.addresses], sentinel_kwargs=sentinel_options))
        pool = manager.master_for(settings.master, db=settings.db, **options).connection_pool
        return Single(cast(Pool, pool), find_master=lambda: _find_master(manager, pool))
    (at,) = settings.addresses
    return Single(cast(Pool, redis.ConnectionPool(host=at.host, port=at.port, db=settings.db, **options)))


def _find_master(manager: Any, pool: Any) -> None:
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


class RedisKV(KV):
    def __init__(
        self,
        servers: Servers,
        settings: RedisSettings,
        clock: Clock,
        *,
        check_server: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """`check_server` raises StoreMisconfigured for a server that may lose data."""
        self._servers = servers
        self._clock = clock
        self._check_server = check_server
        self._checked_at: dict[Pool, float] = {}
        """When each server was last checked."""
        self._prefix = settings.prefix
        self._where = str(settings)
        self._wait: Command | None = None
        if settings.wait_replicas:
            self._wait = (b"WAIT", settings.wait_replicas, int(settings.wait_timeout_seconds * 1000))

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        results: list[Result] = [None] * len(ops)
        for number, flight in enumerate(self._flights(redis_calls.runs_of(ops, self._prefix))):
            try:
                replies = self._fly(flight)
            except KVUnavailable as error:
                error.nothing_done &= number == 0
                raise
            for call, reply in zip(flight, replies, strict=True):
                for place, result in zip(call.places, call.results(reply), strict=True):
                    results[place] = result
        return results

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        key = redis_calls.key_of(self._prefix, partition)
        return redis_calls.pairs_of(self._one(key, redis_calls.scan(key, prefix, after, limit)))

    def delete_range(self, partition: str, first: str, last: str) -> None:
        key = redis_calls.key_of(self._prefix, partition)
        while self._one(key, redis_calls.delete_range(key, first, last), writes=True):
            pass

    def count(self, partition: str, *, limit: int) -> int:
        key = redis_calls.key_of(self._prefix, partition)
        return min(limit, cast(int, self._one(key, redis_calls.count(key))))

    def servers(self) -> list[Server]:
        try:
            pools = self._servers.pools_of_positions(lambda partition: redis_calls.key_of(self._prefix, partition))
        except (redis.RedisError, OSError) as error:
            raise self._failed(error, sent=False) from error
        calls = [Call(b"", command, [], _no_results, False, 0) for _ in pools for command in _IDENTIFY]
        targets = [pool for pool in pools.values() for _ in _IDENTIFY]
        replies: list[Reply] = [None] * len(calls)
        self._round(calls, [(pool, False, place) for place, pool in enumerate(targets)], replies)
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise self._refused(reply, nothing_done=True)
        return sorted(
            Server(partition, self._identity(_fields(server), _fields(replication)))
            for partition, server, replication in zip(pools, replies[::2], replies[1::2], strict=True)
        )

    def _identity(self, server: Mapping[str, str], replication: Mapping[str, str]) -> str:
        """Return the identity of a master from the fields of `INFO server` and `INFO replication`."""
        try:
            role, identity = replication["role"], f"{server['run_id']}/{replication['master_replid']}"
        except KeyError as error:
            raise StoreMisconfigured(
                f"{self._where} does not show {error} in INFO, so nobody could notice that it lost writes in a "
                "failover; connect to a Redis or Valkey itself, not to something in front of it"
            ) from error
        if role != "master":
            raise KVUnavailable(
                f"{self._where} cannot be asked now (its role is {role}): {_TRANSIENT['READONLY']}", nothing_done=True
            )
        return identity

    def close(self) -> None:
        self._servers.close()

    def _one(self, key: bytes, command: Command, *, writes: bool = False) -> Reply:
        return self._fly([Call(key, command, [], _no_results, writes, 0)])[0]

    def _flights(self, runs: list[list[Call]]) -> Iterator[list[Call]]:
        """Yield groups of calls that may be sent together, in order. One flight has been performed before the next is
        sent.

        On a single server a flight may contain several runs, but writes of one run only. A server may refuse one write
        (no memory for it, say) and accept the next; a write must not happen before the ones of an earlier run.
        """
        flight: list[Call] = []
        size_bytes = 0
        wrote = False
        for run in runs:
            if flight and (not self._servers.ordered or (wrote and run[0].writes)):
                yield flight
                flight, size_bytes, wrote = [], 0, False
            for call in run:
                if flight and size_bytes + call.size_bytes > FLIGHT_BYTES:
                    yield flight
                    flight, size_bytes = [], 0
                flight.append(call)
                size_bytes += call.size_bytes
            wrote = wrote or run[0].writes
        if flight:
            yield flight

    def _fly(self, calls: Sequence[Call]) -> list[Reply]:
        """Send `calls` at once, in order for each server, and return the replies. Raises KVUnavailable if any call may
        not have been performed.
        """
        replies: list[Reply] = [None] * len(calls)
        todo = [(self._servers.pool_of(call.key), False, place) for place, call in enumerate(calls)]
        for number in range(1 + REDIRECTIONS_MAX):
            try:
                self._round(calls, todo, replies)
            except KVUnavailable as error:
                error.nothing_done &= number == 0
                raise
            redirected: list[tuple[Pool, bool, int]] = []
            for _, _, place in todo:
                reply = replies[place]
                if isinstance(reply, redis.ResponseError):
                    redirection = _redirection(reply)
                    if redirection is None:
                        raise self._refused(
                            reply, nothing_done=all(isinstance(reply, redis.ResponseError) for reply in replies)
                        )
                    redirected.append((self._servers.pool_at(redirection.address), redirection.asking, place))
                    if not redirection.asking:
                        self._servers.forget()
            if not redirected:
                return replies
            todo = redirected
        raise KVUnavailable(
            f"the slots of {self._where} keep moving; wait until the cluster is stable, then make the same call again"
        )

    def _round(self, calls: Sequence[Call], todo: Sequence[tuple[Pool, bool, int]], replies: list[Reply]) -> None:
        """Send each of `todo` (server, whether to send ASKING, place) and fill in its reply, which may be an error."""
        flights: dict[Pool, list[tuple[bool, int]]] = {}
        for pool, asking, place in todo:
            flights.setdefault(pool, []).append((asking, place))
        links: list[tuple[Pool, Connection]] = []
        sent = False
        try:
            for pool in flights:
                links.append((pool, pool.get_connection()))
                self._check_if_due(*links[-1])
            sent = True
            for (_, connection), flight in zip(links, flights.values(), strict=True):
                connection.send_packed_command(_pieces(connection, self._commands(calls, flight)))
            for (_, connection), flight in zip(links, flights.values(), strict=True):
                for asking, place in flight:
                    if asking:
                        _read(connection)
                    replies[place] = _read(connection)
                if self._waits(calls, flight):
                    confirmed = _read(connection)
                    # Refused writes need no confirmation. A replica, which refuses all writes, refuses WAIT, too.
                    if any(
                        calls[place].writes and not isinstance(replies[place], redis.ResponseError)
                        for _, place in flight
                    ):
                        self._confirmed(confirmed)
            if any(isinstance(reply, redis.ResponseError) for reply in replies):
                _reset(links)  # the error may come from a demoted master; the next connection finds the new one
        except (redis.RedisError, OSError) as error:
            _reset(links)
            self._servers.forget()
            raise self._failed(error, sent=sent) from error
        except BaseException:
            _reset(links)  # replies are left unread
            raise
        finally:
            for pool, connection in links:
                pool.release(connection)

    def _check_if_due(self, pool: Pool, connection: Connection) -> None:
        """Check the server again if its last check is old. Raises StoreMisconfigured, before anything is sent."""
        now = self._clock.monotonic_seconds()
        if now - self._checked_at.setdefault(pool, now) >= CHECK_SECONDS:
            self._check_server(connection)
            self._checked_at[pool] = now

    def _commands(self, calls: Sequence[Call], flight: Sequence[tuple[bool, int]]) -> Iterator[Command]:
        for asking, place in flight:
            if asking:
                yield (b"ASKING",)
            yield calls[place].command
        if self._wait is not None and self._waits(calls, flight):
            yield self._wait

    def _waits(self, calls: Sequence[Call], flight: Sequence[tuple[bool, int]]) -> bool:
        return self._wait is not None and any(calls[place].writes for _, place in flight)

    def _confirmed(self, reply: Reply) -> None:
        replicas = self._wait[1] if self._wait is not None else 0
        if isinstance(reply, redis.ResponseError):
            raise self._refused(reply)
        if cast(int, reply) < cast(int, replicas):
            raise KVUnavailable(
                f"only {reply} of {replicas} replicas of {self._where} confirmed a write in time, so it may be lost in "
                "a failover; make the same call again, check the replicas, or lower ?wait="
            )

    def _failed(self, error: Exception, *, sent: bool) -> RefstoreError:
        """Return refstore's error for a failure of a connection, or while connecting."""
        if isinstance(error, redis.ResponseError):
            return self._refused(error)
        if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
            return InvalidSettings(
                f"{self._where} refused the login ({error}); check the user and the password in the URL"
            )
        why = str(error) or type(error).__name__
        if sent:
            return KVUnavailable(
                f"{self._where} did not answer ({why}); the commands may have been performed, or may be performed later"
            )
        return KVUnavailable(
            f"{self._where} cannot be reached ({why}); check that it runs, then make the same call again",
            nothing_done=True,
        )

    def _refused(self, error: redis.ResponseError, *, nothing_done: bool = False) -> RefstoreError:
        """Return refstore's error for an error reply. A command that gets an error reply did nothing (the scripts
        ensure that).
        """
        code = _code(error)
        if code == "NOPERM":
            return InvalidSettings(
                f"the user of {self._where} may not do that ({error}); give it: ~{self._prefix}:* +@read +@write "
                "+@scripting +@connection +info +wait +cluster|slots"
            )
        if code == "WRONGTYPE":
            return StoreMisconfigured(
                f"{self._where} has a key that begins with '{self._prefix}:' and is not refstore's ({error});"
                " give refstore a database or a ?prefix= of its own"
            )
        if code in _TRANSIENT:
            return KVUnavailable(
                f"{self._where} cannot perform this now ({error}): {_TRANSIENT[code]}", nothing_done=nothing_done
            )
        return StoreMisconfigured(
            f"{self._where} refused a command ({error}); refstore needs Redis 7.0 or Valkey, scripts allowed"
        )


class Single:
    """One server. If the pool uses Sentinels, it is the current master."""

    ordered = True

    def __init__(self, pool: Pool, *, find_master: Callable[[], object] = lambda: None) -> None:
        """`find_master` makes sure that the pool connects to the master of now."""
        self._pool = pool
        self._find_master = find_master

    def pool_of(self, key: bytes) -> Pool:  # noqa: ARG002  # one server has all keys
        return self._pool

    def pool_at(self, address: Address) -> Pool:
        raise StoreMisconfigured(
            f"the Redis is a node of a cluster (it points to {address}); use a redis+cluster:// URL"
        )

    def pools_of_positions(self, key_of: Callable[[str], bytes]) -> dict[str, Pool]:  # noqa: ARG002  # as pool_of
        self._find_master()
        return {POSITIONS: self._pool}

    def forget(self) -> None:
        return

    def close(self) -> None:
        self._pool.disconnect()


class Cluster:
    """Keeps the map of slots, and a pool for each node. Any node can give the map. It is read again when it proves
    wrong.
    """

    ordered = False

    def __init__(self, seeds: Sequence[Address], pool_to: Callable[[Address], Pool]) -> None:
        self._seeds = tuple(seeds)
        self._pool_to = pool_to
        self._lock = Lock()
        self._pools: dict[Address, Pool] = {}
        self._owners: list[Address | None] = []
        """The owner of each slot; empty: the map must be read."""
        self._turn = 0

    def pool_of(self, key: bytes) -> Pool:
        slot = redis.crc.key_slot(key)
        with self._lock:
            if not self._owners:
                self._read_map()
            owner = self._owners[slot]
            if owner is not None:
                return self._pool(owner)
            self._owners = []
        raise _uncovered(slot)

    def pool_at(self, address: Address) -> Pool:
        with self._lock:
            return self._pool(address)

    def pools_of_positions(self, key_of: Callable[[str], bytes]) -> dict[str, Pool]:
        with self._lock:
            ranges = self._read_map()
            owners = self._owners
            masters = {owner: self._pool(owner) for owner in owners if owner is not None}
        if None in owners:
            raise _uncovered(owners.index(None))
        expected = _owners_by_id(ranges)
        for address, pool in masters.items():
            if _owners_by_id(_ranges(_ask(pool, _SLOTS), address)) != expected:
                raise KVUnavailable(
                    "the nodes of the cluster disagree on who holds which slots; wait until a failover or a move of "
                    "slots is done, then make the same call again",
                    nothing_done=True,
                )
        pools: dict[str, Pool] = {}
        names = (f"{POSITIONS}/{number:04}" for number in count())
        while masters:  # it ends: each slot is the slot of a name below positions/153192
            partition = next(names)
            owner = owners[redis.crc.key_slot(key_of(partition))]
            if owner is not None and owner in masters:
                pools[partition] = masters.pop(owner)
        return pools

    def forget(self) -> None:
        with self._lock:
            self._owners = []

    def close(self) -> None:
        with self._lock:
            for pool in self._pools.values():
                pool.disconnect()

    def _pool(self, address: Address) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = self._pool_to(address)
        return pool

    def _read_map(self) -> list[_Range]:
        """Read the map of slots from the first node that answers, and return its ranges. Each call starts with another
        node, because a node that lost contact with the others may have an old map.
        """
        known = [*dict.fromkeys((*self._seeds, *self._pools))]
        self._turn += 1
        failure: Exception | None = None
        for place in range(len(known)):
            address = known[(place + self._turn) % len(known)]
            try:
                ranges = _ranges(_ask(self._pool(address), _SLOTS), address)
            except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
                raise InvalidSettings(
                    f"{address} refused us ({error}); check user, password and permissions (+cluster|slots)"
                ) from error
            except redis.ResponseError as error:
                raise StoreMisconfigured(
                    f"{address} is not a node of a cluster ({error}); use redis:// for a single server"
                ) from error
            except (redis.RedisError, OSError) as error:
                failure = error
            else:
                owners: list[Address | None] = [None] * redis.crc.REDIS_CLUSTER_HASH_SLOTS
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


class _Prepared:
    """Prepares each new connection before its first use."""

    def __init__(self, settings: RedisSettings) -> None:
        self._checks = Checks(str(settings))

    def __call__(self, connection: Connection) -> None:
        """Log in, and check that the server is not set to lose data. Raises StoreMisconfigured."""
        try:
            connection.on_connect()
            _reset_when_closed(connection)
            self.check_server(connection)
        except BaseException:
            connection.disconnect()
            raise

    def check_server(self, connection: Connection) -> None:
        memory, persistence, save = _query(
            connection, [(b"INFO", b"memory"), (b"INFO", b"persistence"), (b"CONFIG", b"GET", b"save")]
        )
        if _fields(persistence).get("loading") == "1":
            raise redis.BusyLoadingError("it is loading its data")
        self._checks.check(_fields(memory), _fields(persistence), save)


class _Range(NamedTuple):
    """A range of slots with one owner."""

    first: int
    last: int
    owner: Address
    node: bytes
    """The id of the owner, which is the same in the maps of all nodes; its address may differ."""


class _Redirection(NamedTuple):
    address: Address
    asking: bool
    """Whether to use the address only once, after ASKING."""


_SLOTS: Final[Command] = (b"CLUSTER", b"SLOTS")
_IDENTIFY: Final[tuple[Command, ...]] = ((b"INFO", b"server"), (b"INFO", b"replication"))

_CODES: Final[dict[type[redis.ResponseError], str]] = {
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.ReadOnlyError: "READONLY",
    redis.OutOfMemoryError: "OOM",
    redis.exceptions.NoPermissionError: "NOPERM",
}
"""redis-py removes the code from the message if it has a class for it. The order matters: MovedError is an AskError."""

_TRANSIENT: Final = {
    "TRYAGAIN": "its slot is being moved; make the same call again",
    "MASTERDOWN": "it lost its master; wait for the failover, then make the same call again",
    "CLUSTERDOWN": "the cluster does not cover all slots; wait for the failover, then make the same call again",
    "READONLY": "it is a replica; give the master's address, or a redis+sentinel:// URL that finds it",
    "OOM": "it is out of memory, and must not evict keys; raise maxmemory, then make the same call again",
    "LOADING": "it is loading its data; wait, then make the same call again",
    "BUSY": "another client's script blocks it; wait or end it with SCRIPT KILL, then make the same call again",
    "MISCONF": "it cannot write to its disk and accepts no writes; look at its log and its disk",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write; start them, then make the same call again",
    "UNBLOCKED": "it stopped being the master; make the same call again",
}


def _code(error: redis.ResponseError) -> str:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), str(error).partition(" ")[0])


def _redirection(error: redis.ResponseError) -> _Redirection | None:
    """Return the server that has the slot, from `MOVED 3999 host:port`, with or without the code before it."""
    code = _code(error)
    if code not in ("MOVED", "ASK"):
        return None
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return _Redirection(Address(host, int(port)), code == "ASK")


def _ranges(reply: Reply, asked: Address) -> list[_Range]:
    """Parse the reply of the node `asked` to CLUSTER SLOTS."""
    ranges: list[_Range] = []
    for first, last, (host, port, *rest), *_ in cast("list[tuple[int, int, list[Any]]]", reply):
        # A node that does not know its own name leaves it out. Then it is the node that answered.
        owner = Address(host.decode() if host else asked.host, port)
        ranges.append(_Range(first, last, owner, rest[0] if rest else b""))
    return ranges


def _owners_by_id(ranges: Iterable[_Range]) -> set[tuple[int, int, bytes]]:
    return {(first, last, node) for first, last, _, node in ranges}


def _uncovered(slot: int) -> KVUnavailable:
    return KVUnavailable(
        f"no node of the cluster holds slot {slot}; wait until all slots are covered, then make the same call again",
        nothing_done=True,
    )


def _no_results(_: Reply) -> tuple[Result, ...]:
    return ()


def _pieces(connection: Connection, commands: Iterable[Command]) -> Iterator[bytes]:
    """Yield `commands` as bytes to send, piece by piece, so that the server begins while the rest is packed."""
    some: list[Command] = []
    arguments = 0
    for command in commands:
        some.append(command)
        arguments += len(command)
        if arguments >= PIECE_ARGUMENTS:
            yield from connection.pack_commands(some)
            some, arguments = [], 0
    yield from connection.pack_commands(some)


def _read(connection: Connection) -> Reply:
    """Return one reply. An error reply is returned too, so that the replies after it are read."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _query(connection: Connection, commands: Sequence[Command]) -> list[Reply]:
    """Return the replies to `commands`; None for a command that the server refuses or does not know."""
    connection.send_packed_command(connection.pack_commands(commands))
    replies = [_read(connection) for _ in commands]
    return [None if isinstance(reply, redis.ResponseError) else reply for reply in replies]


def _ask(pool: Pool, command: Command) -> Reply:
    connection = pool.get_connection()
    try:
        connection.send_packed_command(connection.pack_commands([command]))
        return connection.read_response()
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _reset(links: Iterable[tuple[Pool, Connection]]) -> None:
    for _, connection in links:
        connection.disconnect()


def _reset_when_closed(connection: Connection) -> None:
    """Set the socket so that closing it discards unsent data, and resets the connection at once.

    Otherwise the system could deliver an abandoned request after its retry, and after later requests.
    """
    sock = getattr(connection, "_sock", None)
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _fields(info: Reply) -> dict[str, str]:
    """Parse the `name:value` lines of INFO."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in pairs if colon}
