"""`redis://`, `rediss://`, `redis+sentinel://`, `redis+cluster://`: one Redis or Valkey, a master that Sentinels watch,
or a Cluster.

`url.py` parses the URL. `servers.py` finds the servers behind it. `commands.py` defines how data is stored in Redis,
and the commands. On a single server a batch costs one round trip, including reads of any kind around its writes,
because the commands of one connection are performed in order. A second kind of write costs another round trip. On a
Cluster each run of one kind costs one round trip: the driver calls all its nodes at once, and the next run waits for
all of them.

The driver retries nothing that may have been performed. A broken connection, a timeout, or a server that loads, fails
over or is out of memory raises `KVUnavailable`, and `RetryingKV` decides. The driver only follows MOVED and ASK, by
which the server says that it did nothing. Connections are reset, not closed, so that unsent data of a broken one is
never sent later.

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
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import redis
import redis.exceptions
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from refstore.core.batches import split_batches
from refstore.core.clock import Clock
from refstore.errors import InvalidSettings, KVRefused, KVUnavailable, RefstoreError, StoreMisconfigured
from refstore.kv.base import KV, SCAN_LIMIT, Op, Result, Server
from refstore.kv.redis import commands as redis_commands
from refstore.kv.redis import url as redis_url
from refstore.kv.redis.commands import Command, RedisCall, Reply
from refstore.kv.redis.durability import DurabilityChecks, persistence_risks
from refstore.kv.redis.servers import (
    ConnectionPool,
    RedisCluster,
    RedisConnection,
    RedisServers,
    SingleServer,
    find_master,
)
from refstore.kv.redis.url import RedisSettings, ServerAddress

CHECK_SECONDS: Final = 10.0
"""For how long one check of a server's settings is valid."""
REDIRECTIONS_MAX: Final = 5
"""How often MOVED or ASK is followed before `RetryingKV` decides."""


def open_redis(url: str, clock: Clock) -> RedisKV:
    """Open the KV of a Redis URL. Connects to nothing yet. Raises InvalidSettings."""
    settings = redis_url.parse_redis_url(url)
    prepared = _ConnectionSetup(settings)
    options: dict[str, Any] = {
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": settings.timeout_seconds,
        "socket_connect_timeout": settings.connect_seconds,
        "socket_keepalive": True,
        "protocol": 2,
        # No retries by redis-py: it does not know whether a write that was sent may be sent again.
        "retry": Retry(NoBackoff(), 0),
        "redis_connect_func": prepared,
    }
    if settings.tls:
        options |= {"connection_class": redis.SSLConnection, **_tls_options(settings.certificates)}
    return RedisKV(_servers(settings, options), settings, clock, check_server=prepared.check_server)


def _tls_options(certificates: str) -> dict[str, str]:
    """Return redis-py's options for a PEM file of certificates. Raises InvalidSettings."""
    if not certificates:
        return {}
    try:
        has_key = b"PRIVATE KEY-----" in Path(certificates).read_bytes()
    except OSError as error:
        raise InvalidSettings(
            f"certificates={certificates} cannot be read ({error.strerror}); name a PEM file that this process may read"
        ) from error
    own = {"ssl_certfile": certificates, "ssl_keyfile": certificates} if has_key else {}
    return {"ssl_ca_certs": certificates, **own}


def _servers(settings: RedisSettings, options: dict[str, Any]) -> RedisServers:
    if settings.kind == "cluster":
        return RedisCluster(
            settings.addresses,
            lambda at: cast(ConnectionPool, redis.ConnectionPool(host=at.host, port=at.port, **options)),
        )
    if settings.kind == "sentinel":
        options.pop("connection_class", None)
        options |= {"ssl": settings.tls}
        sentinel_options = {name: value for name, value in options.items() if name != "redis_connect_func"}
        sentinel_options |= {"username": settings.sentinel_username, "password": settings.sentinel_password}
        manager = cast(Any, redis.sentinel.Sentinel([*settings.addresses], sentinel_kwargs=sentinel_options))
        pool = manager.master_for(settings.master, db=settings.db, **options).connection_pool
        return SingleServer(cast(ConnectionPool, pool), find_master=lambda: find_master(manager, pool))
    (at,) = settings.addresses
    return SingleServer(
        cast(ConnectionPool, redis.ConnectionPool(host=at.host, port=at.port, db=settings.db, **options))
    )


class RedisKV(KV):
    def __init__(
        self,
        servers: RedisServers,
        settings: RedisSettings,
        clock: Clock,
        *,
        check_server: Callable[[RedisConnection], None] = lambda _: None,
    ) -> None:
        """`check_server` raises StoreMisconfigured for a server that may lose data."""
        self._servers = servers
        self._clock = clock
        self._check_server = check_server
        self._checked_at: dict[ConnectionPool, float] = {}
        """When each server was last checked."""
        self._prefix = settings.prefix
        self._where = str(settings)
        self._wait: Command | None = None
        if settings.wait_replicas:
            self._wait = (b"WAIT", settings.wait_replicas, int(settings.wait_seconds * 1000))

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        results: list[Result] = [None] * len(ops)
        wrote = False
        for flight in self._group_into_flights(redis_commands.group_calls(ops, self._prefix)):
            try:
                replies = self._send_flight(flight)
            except KVUnavailable as error:
                error.nothing_done &= not wrote
                raise
            wrote = wrote or any(call.writes for call in flight)
            for call, reply in zip(flight, replies, strict=True):
                for place, result in zip(call.places, call.results(reply), strict=True):
                    results[place] = result
        return results

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        key = redis_commands.partition_key(self._prefix, partition)
        return redis_commands.parse_pairs(self._call_one(key, redis_commands.scan_command(key, prefix, after, limit)))

    def count(self, partition: str, *, limit: int) -> int:
        key = redis_commands.partition_key(self._prefix, partition)
        return min(limit, cast(int, self._call_one(key, redis_commands.count_command(key))))

    def partitions(self) -> list[str]:
        found: set[str] = set()
        pools = self._servers.pools_of_positions(
            lambda partition: redis_commands.partition_key(self._prefix, partition)
        )
        for pool in pools.values():
            cursor: int | None = None
            while cursor != 0:
                call = RedisCall(b"", redis_commands.list_command(self._prefix, cursor or 0), [], _no_results, False)
                replies: list[Reply] = [None]
                self._send_round([call], [(pool, False, 0)], replies)
                if isinstance(replies[0], redis.ResponseError):
                    raise self._reply_error(replies[0], nothing_done=True)
                cursor, names = redis_commands.parse_partitions(self._prefix, replies[0])
                found.update(names)
        return sorted(found)

    def risks(self) -> Sequence[str]:
        found = (
            what
            for info, save, appendfsync in self._ask_masters(_PERSISTENCE).values()
            if not isinstance(info, redis.ResponseError)  # a server that does not show it
            for _, what in persistence_risks(_parse_info(info), save, appendfsync)
        )
        return list(dict.fromkeys(found))

    def servers(self) -> list[Server]:
        answers = self._ask_masters(_IDENTIFY)
        for reply in chain.from_iterable(answers.values()):
            if isinstance(reply, redis.ResponseError):
                raise self._reply_error(reply, nothing_done=True)
        return sorted(
            Server(partition, self._master_identity(_parse_info(server), _parse_info(replication)))
            for partition, (server, replication) in answers.items()
        )

    def _ask_masters(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        """Return the replies of each master, which may be errors, by the name of a partition that it stores."""
        try:
            pools = self._servers.pools_of_positions(
                lambda partition: redis_commands.partition_key(self._prefix, partition)
            )
        except (redis.RedisError, OSError) as error:
            raise self._connection_error(error, sent=False) from error
        calls = [RedisCall(b"", command, [], _no_results, False) for _ in pools for command in commands]
        targets = [pool for pool in pools.values() for _ in commands]
        replies: list[Reply] = [None] * len(calls)
        self._send_round(calls, [(pool, False, place) for place, pool in enumerate(targets)], replies)
        return dict(zip(pools, split_batches(replies, len(commands)), strict=True))

    def _master_identity(self, server: Mapping[str, str], replication: Mapping[str, str]) -> str:
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

    def _call_one(self, key: bytes, command: Command) -> Reply:
        return self._send_flight([RedisCall(key, command, [], _no_results, False)])[0]

    def _group_into_flights(self, runs: list[list[RedisCall]]) -> Iterator[list[RedisCall]]:
        """Yield groups of calls that may be sent together, in order. One flight has been performed before the next is
        sent.

        On a single server a flight may contain several runs, but writes of one run only. A server may refuse one write
        (no memory for it, say) and accept the next; a write must not happen before the ones of an earlier run.
        """
        flight: list[RedisCall] = []
        wrote = False
        for run in runs:
            if flight and (not self._servers.is_ordered or (wrote and run[0].writes)):
                yield flight
                flight, wrote = [], False
            flight += run
            wrote = wrote or run[0].writes
        if flight:
            yield flight

    def _send_flight(self, calls: Sequence[RedisCall]) -> list[Reply]:
        """Send `calls` at once, in order for each server, and return the replies. Raises KVUnavailable if any call may
        not have been performed.
        """
        replies: list[Reply] = [None] * len(calls)
        todo = [(self._servers.pool_of(call.key), False, place) for place, call in enumerate(calls)]
        for number in range(1 + REDIRECTIONS_MAX):
            try:
                self._send_round(calls, todo, replies)
            except KVUnavailable as error:
                error.nothing_done &= number == 0
                raise
            redirected: list[tuple[ConnectionPool, bool, int]] = []
            for _, _, place in todo:
                reply = replies[place]
                if isinstance(reply, redis.ResponseError):
                    redirection = _parse_redirection(reply)
                    if redirection is None:
                        raise self._reply_error(reply, nothing_done=_are_writes_refused(calls, replies))
                    redirected.append((self._servers.pool_at(redirection.address), redirection.is_asking, place))
                    if not redirection.is_asking:
                        self._servers.forget_slot_map()
            if not redirected:
                return replies
            todo = redirected
        raise KVUnavailable(
            f"the slots of {self._where} keep moving; wait until the cluster is stable, then make the same call again"
        )

    def _send_round(
        self, calls: Sequence[RedisCall], todo: Sequence[tuple[ConnectionPool, bool, int]], replies: list[Reply]
    ) -> None:
        """Send each of `todo` (server, whether to send ASKING, place) and fill in its reply, which may be an error."""
        flights: dict[ConnectionPool, list[tuple[bool, int]]] = {}
        for pool, asking, place in todo:
            flights.setdefault(pool, []).append((asking, place))
        links: list[tuple[ConnectionPool, RedisConnection]] = []
        sent = False
        try:
            for pool in flights:
                links.append((pool, pool.get_connection()))
                self._check_if_stale(*links[-1])
            sent = True
            for (_, connection), flight in zip(links, flights.values(), strict=True):
                connection.send_packed_command(connection.pack_commands(self._commands(calls, flight)))
            for (_, connection), flight in zip(links, flights.values(), strict=True):
                for asking, place in flight:
                    if asking:
                        _read(connection)
                    replies[place] = _read(connection)
                if self._needs_wait(calls, flight):
                    confirmed = _read(connection)
                    # Refused writes need no confirmation. A replica, which refuses all writes, refuses WAIT, too.
                    if any(
                        calls[place].writes and not isinstance(replies[place], redis.ResponseError)
                        for _, place in flight
                    ):
                        self._check_replicated(confirmed)
            if any(isinstance(reply, redis.ResponseError) for reply in replies):
                _reset_connections(
                    links
                )  # the error may come from a demoted master; the next connection finds the new one
        except (redis.RedisError, OSError) as error:
            _reset_connections(links)
            self._servers.forget_slot_map()
            raise self._connection_error(error, sent=sent) from error
        except BaseException:
            _reset_connections(links)  # replies are left unread
            raise
        finally:
            for pool, connection in links:
                pool.release(connection)

    def _check_if_stale(self, pool: ConnectionPool, connection: RedisConnection) -> None:
        """Check the server again if its last check is old. Raises StoreMisconfigured, before anything is sent."""
        now = self._clock.monotonic_seconds()
        if now - self._checked_at.setdefault(pool, now) >= CHECK_SECONDS:
            self._check_server(connection)
            self._checked_at[pool] = now

    def _commands(self, calls: Sequence[RedisCall], flight: Sequence[tuple[bool, int]]) -> Iterator[Command]:
        for asking, place in flight:
            if asking:
                yield (b"ASKING",)
            yield calls[place].command
        if self._wait is not None and self._needs_wait(calls, flight):
            yield self._wait

    def _needs_wait(self, calls: Sequence[RedisCall], flight: Sequence[tuple[bool, int]]) -> bool:
        return self._wait is not None and any(calls[place].writes for _, place in flight)

    def _check_replicated(self, reply: Reply) -> None:
        replicas = self._wait[1] if self._wait is not None else 0
        if isinstance(reply, redis.ResponseError):
            raise self._reply_error(reply)
        if cast(int, reply) < cast(int, replicas):
            raise KVUnavailable(
                f"only {reply} of {replicas} replicas of {self._where} confirmed a write in time, so it may be lost in "
                "a failover; make the same call again, check the replicas, or lower ?wait="
            )

    def _connection_error(self, error: Exception, *, sent: bool) -> RefstoreError:
        """Return refstore's error for a failure of a connection, or while connecting."""
        if isinstance(error, redis.ResponseError):
            return self._reply_error(error)
        if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
            return KVRefused(
                f"{self._where} refused the login ({error}); check the user and the password in the URL",
                nothing_done=not sent,
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

    def _reply_error(self, error: redis.ResponseError, *, nothing_done: bool = False) -> RefstoreError:
        """Return refstore's error for an error reply. A command that gets an error reply did nothing (the scripts
        ensure that).
        """
        code = _error_code(error)
        if code == "NOPERM":
            return KVRefused(
                f"the user of {self._where} may not do that ({error}); give it: ~{self._prefix}:* +@read +@write "
                "+@scripting +@connection +info +wait +cluster|slots",
                nothing_done=nothing_done,
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


class _ConnectionSetup:
    """Prepares each new connection before its first use."""

    def __init__(self, settings: RedisSettings) -> None:
        self._checks = DurabilityChecks(str(settings))

    def __call__(self, connection: RedisConnection) -> None:
        """Log in, and check that the server is not set to lose data. Raises StoreMisconfigured."""
        try:
            connection.on_connect()
            _reset_on_close(connection)
            self.check_server(connection)
        except BaseException:
            connection.disconnect()
            raise

    def check_server(self, connection: RedisConnection) -> None:
        memory, persistence, save = _query(
            connection, [(b"INFO", b"memory"), (b"INFO", b"persistence"), (b"CONFIG", b"GET", b"save")]
        )
        if _parse_info(persistence).get("loading") == "1":
            raise redis.BusyLoadingError("it is loading its data")
        self._checks.check(_parse_info(memory), _parse_info(persistence), save)


class _Redirection(NamedTuple):
    address: ServerAddress
    is_asking: bool
    """Whether to use the address only once, after ASKING."""


_PERSISTENCE: Final[tuple[Command, ...]] = (
    (b"INFO", b"persistence"),
    (b"CONFIG", b"GET", b"save"),
    (b"CONFIG", b"GET", b"appendfsync"),
)
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


def _error_code(error: redis.ResponseError) -> str:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), str(error).partition(" ")[0])


def _parse_redirection(error: redis.ResponseError) -> _Redirection | None:
    """Return the server that has the slot, from `MOVED 3999 host:port`, with or without the code before it."""
    code = _error_code(error)
    if code not in ("MOVED", "ASK"):
        return None
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return _Redirection(ServerAddress(host, int(port)), code == "ASK")


def _are_writes_refused(calls: Sequence[RedisCall], replies: Sequence[Reply]) -> bool:
    """Return whether the server refused every write. It may have answered the reads among them all the same."""
    return all(
        isinstance(reply, redis.ResponseError) or not call.writes for call, reply in zip(calls, replies, strict=True)
    )


def _no_results(_: Reply) -> tuple[Result, ...]:
    return ()


def _read(connection: RedisConnection) -> Reply:
    """Return one reply. An error reply is returned too, so that the replies after it are read."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _query(connection: RedisConnection, commands: Sequence[Command]) -> list[Reply]:
    """Return the replies to `commands`; None for a command that the server refuses or does not know."""
    connection.send_packed_command(connection.pack_commands(commands))
    replies = [_read(connection) for _ in commands]
    return [None if isinstance(reply, redis.ResponseError) else reply for reply in replies]


def _reset_connections(links: Iterable[tuple[ConnectionPool, RedisConnection]]) -> None:
    for _, connection in links:
        connection.disconnect()


def _reset_on_close(connection: RedisConnection) -> None:
    """Set the socket so that closing it discards unsent data, and resets the connection at once.

    Otherwise the system could deliver an abandoned request after its retry, and after later requests.
    """
    sock = getattr(connection, "_sock", None)
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _parse_info(info: Reply) -> dict[str, str]:
    """Parse the `name:value` lines of INFO."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in pairs if colon}
