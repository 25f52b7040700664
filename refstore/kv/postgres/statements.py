"""The SQL of each operation, and how operations become calls of it. Pure: nothing is sent here.

A call is one statement for up to CALL_OPS operations of one kind, given as arrays, and one transaction. The server's
default isolation, READ COMMITTED, is enough, because no operation depends on two keys:

- `GET`, `SCAN` and `COUNT` read one snapshot, taken in the call.
- `SET` and `CREATE`: `ON CONFLICT` meets the newest committed row, also one that the snapshot lacks, and waits for who
  is writing it.
- `SWAP`, `REMOVE` and `DELETE_PAGE`: `FOR UPDATE` locks the row, and where somebody else wrote it meanwhile looks again
  whether the newest one holds what is expected. Then nobody else can write it before the end. A row that is not in the
  snapshot is not found: the key was absent, or held something else, at a moment of the call.
- `EXCHANGE`: the same, and the locked value is the one that is replaced. A key that was absent is created. If somebody
  else created it first, nothing is written, and the driver makes the call again for this key.

Every statement takes its locks in the order of the arrays, which is that of the keys, so two calls of one kind never
wait for each other. (`EXCHANGE` locks what is there before it creates. If it and a `CREATE` of the same keys come to
wait for each other, the server ends one of them, which then did nothing.) `OFFSET 0` and `MATERIALIZED` keep the
planner from another order, and from reading the whole table. A scan reads from its lower to its upper bound, in order
(`kv_page` in `sql/`), and no row beyond its page.

Each write sets `synchronous_commit` for its own transaction. A setting of the session would be another client's behind
PgBouncer. Each read asks to be allowed to write, which a standby refuses (whose rows may be old): a pooler may be
pointed to another server while this process stays connected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from refstore.core.batches import BATCH_SIZE, split_sized
from refstore.errors import InvalidName
from refstore.kv.base import ABSENT, Delete, Exchange, Get, Key, Op, Set, SetIf

CALL_OPS: Final = BATCH_SIZE
CALL_BYTES: Final = 8 << 20
"""Bytes of keys and values per call. A larger operation is sent alone."""

_DURABLE: Final = "WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', 'on', true))"
_ON_PRIMARY: Final = "WITH primary_only AS MATERIALIZED (SELECT set_config('transaction_read_only', 'off', true))"
_ASKED: Final = (
    "unnest(%(partitions)b::bytea[], %(keys)b::bytea[], %(values)b::bytea[], %(expected)b::bytea[]) "
    "WITH ORDINALITY AS asked (partition, key, value, expected, n)"
)
_FOUND: Final = (
    "LATERAL (SELECT value FROM refstore.kv WHERE kv.partition = asked.partition AND kv.key = asked.key "
    "{condition} OFFSET 0 {lock}) AS found"
)
_LOCKED: Final = _FOUND.format(condition="", lock="FOR UPDATE")
_LOCKED_IF_EXPECTED: Final = _FOUND.format(
    condition="AND (asked.expected IS NULL OR kv.value = asked.expected)", lock="FOR UPDATE"
)
_INSERT: Final = "INSERT INTO refstore.kv (partition, key, value) SELECT asked.partition, asked.key, asked.value"
_REPLACE: Final = "ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value"

GET: Final = (
    f"{_ON_PRIMARY} SELECT n, found.value FROM primary_only, {_ASKED} CROSS JOIN {_FOUND.format(condition='', lock='')}"
)
GET_ONE: Final = (
    f"{_ON_PRIMARY} SELECT 1::bigint, value FROM primary_only, refstore.kv WHERE partition = "
    "%(partition)b AND key = %(key)b"
)
"""Half the time of GET."""
READS: Final = (GET, GET_ONE)
SET: Final = f"{_DURABLE} {_INSERT} FROM durable, {_ASKED} {_REPLACE}"
CREATE: Final = f"{_DURABLE} {_INSERT} FROM durable, {_ASKED} ON CONFLICT DO NOTHING RETURNING partition, key"
SWAP: Final = (
    f"{_DURABLE} {_INSERT} FROM durable, {_ASKED} CROSS JOIN {_LOCKED_IF_EXPECTED} {_REPLACE} RETURNING partition, key"
)
REMOVE: Final = (
    f"{_DURABLE}, held AS MATERIALIZED (SELECT asked.partition, asked.key FROM durable, {_ASKED} CROSS JOIN "
    f"{_LOCKED_IF_EXPECTED}) DELETE FROM refstore.kv USING held WHERE kv.partition = held.partition "
    "AND kv.key = held.key RETURNING kv.partition, kv.key"
)
EXCHANGE: Final = (
    f"{_DURABLE}, asked AS MATERIALIZED (SELECT asked.*, found.value AS old FROM durable, {_ASKED} LEFT JOIN {_LOCKED} "
    f"ON true), written AS ({_INSERT} FROM asked {_REPLACE} WHERE (kv.partition, kv.key) IN (SELECT partition, key "
    "FROM asked WHERE old IS NOT NULL) RETURNING partition, key) "
    "SELECT n, old FROM asked JOIN written USING (partition, key)"
)
SCAN: Final = f"{_ON_PRIMARY} SELECT key, value FROM primary_only, refstore.kv_page(%b, %b, %b, %b::bigint)"
COUNT: Final = f"{_ON_PRIMARY} SELECT count(*) FROM primary_only, refstore.kv_page(%b, '', '\\xff', %b::bigint)"
PARTITIONS: Final = (
    f"{_ON_PRIMARY.replace('WITH', 'WITH RECURSIVE')}, each (last) AS ((SELECT partition FROM refstore.kv ORDER BY "
    "partition LIMIT 1) UNION ALL SELECT (SELECT partition FROM refstore.kv WHERE partition > last ORDER BY partition "
    "LIMIT 1) FROM each WHERE last IS NOT NULL) SELECT last FROM primary_only, each WHERE last IS NOT NULL"
)
"""One look into the index for each partition."""
DELETE_PAGE: Final = (
    f"{_DURABLE}, asked AS MATERIALIZED (SELECT %(partition)b::bytea AS partition, key FROM "
    "refstore.kv_page(%(partition)b, %(low)b, %(high)b, %(limit)b::bigint)), held AS MATERIALIZED (SELECT "
    f"asked.partition, asked.key FROM durable, asked CROSS JOIN {_LOCKED}), gone AS (DELETE FROM refstore.kv USING "
    "held WHERE kv.partition = held.partition AND kv.key = held.key) SELECT count(*) FROM asked"
)
SERVER: Final = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE concat_ws('/', (SELECT system_identifier FROM "
    "pg_control_system()), left(pg_walfile_name(pg_current_wal_lsn()), 8), extract(epoch FROM "
    "pg_postmaster_start_time()), 'refstore.kv'::regclass::oid) END"
)
SETTINGS: Final = (
    "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on', "
    "current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication)"
)


def encode(text: str) -> bytes:
    """Return a partition or a key as it is stored. Raises InvalidName."""
    if not text or "\0" in text:
        raise InvalidName(f"{text[:80]!r} cannot be a partition or a key; it must not be empty, nor contain NUL")
    return text.encode()


def split_calls(ops: Sequence[Op]) -> Iterator[tuple[str, list[int]]]:
    """Yield the calls: a statement, and the indexes of its operations in the order of their keys."""
    for _, run in groupby(range(len(ops)), key=lambda index: type(ops[index])):
        by_statement: dict[str, list[int]] = {}
        for index in run:
            by_statement.setdefault(_statement_of(ops[index]), []).append(index)
        for statement, indexes in by_statement.items():
            indexes.sort(key=lambda index: ops[index].key)  # code points sort as their UTF-8 does
            for some in split_sized(indexes, lambda i: _size(ops[i]), size_max=CALL_BYTES, items_max=CALL_OPS):
                yield (GET_ONE if statement == GET and len(some) == 1 else statement), some


def parameters(statement: str, ops: Sequence[Op]) -> dict[str, bytes | list[bytes] | None]:
    """Return the arrays of a call, whose operations are all of one kind and shape."""
    if statement == GET_ONE:
        return {"partition": encode(ops[0].key.partition), "key": encode(ops[0].key.name)}
    return {
        "partitions": [encode(op.key.partition) for op in ops],
        "keys": [encode(op.key.name) for op in ops],
        "values": _texts(ops, "value"),
        "expected": _texts(ops, "expected"),
    }


def row_key(key: Key) -> tuple[bytes, bytes]:
    """Return the partition and the key of a returned row."""
    return key.partition.encode(), key.name.encode()


def _statement_of(op: Op) -> str:
    if isinstance(op, SetIf):
        if op.expected is ABSENT:
            return GET if op.value is ABSENT else CREATE
        return REMOVE if op.value is ABSENT else SWAP
    return _STATEMENTS[type(op)]


def _texts(ops: Sequence[Op], field: str) -> list[bytes] | None:
    """Return the values, or what is expected; None, which unnest takes for NULL in each row, where there is none."""
    return None if getattr(ops[0], field, ABSENT) is ABSENT else [getattr(op, field) for op in ops]


def _size(op: Op) -> int:
    texts = (getattr(op, "value", ABSENT), getattr(op, "expected", ABSENT))
    return len(op.key.partition) + len(op.key.name) + sum(len(text) for text in texts if text is not ABSENT)


_STATEMENTS: Final[dict[type[Op], str]] = {Get: GET, Set: SET, Exchange: EXCHANGE, Delete: REMOVE}
