"""The S3 gateway: bodies to a folder and to a real S3 server, small objects, an upload in parts, and a listing.

The gateway is `refstore serve` with one worker; the clients are one other process. Requests are signed beforehand, and
their payload is not, as Arrow's object_store sends them over TLS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import api_servers, lakes
from bench.api_servers import Server
from bench.listing import fill
from bench.measure import Row, Series, at_least, at_most, in_fresh_process, in_turns, on_processor, rates
from bench.prepared_pages import store_pages
from bench.s3_requests import S3Call, S3Target, SentRequest, plain, sign, write_requests
from bench.workshop import Workshop, make_lake
from tests.servers.s3_base import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.servers.s3_servers import RcloneS3

CLIENTS: Final = 16
BODY_BYTES: Final = 8 << 20
SMALL_BYTES: Final = 1 << 10
PART_BYTES: Final = 64 << 20
PLAIN_SHARE: Final = 0.6
RCLONE_SHARE: Final = 0.8
SMALL_GET_SHARE: Final = 0.5
SMALL_PUT_SHARE: Final = 0.8
STORE_FACTOR: Final = 1.2
LIMIT_MIB_PER_SECOND: Final = 100.0
MEMORY_MIB_MAX: Final = 300
PARTS_SHARE: Final = 0.7
KEYS_PER_SECOND_FACTOR: Final = 5
API: Final = f"/api/v1/repositories/{lakes.REPOSITORY}"


def run(shop: Workshop) -> Iterator[Row]:
    yield from bodies(shop)
    yield from small_objects(shop)
    yield from before_store(shop)
    yield from parts(shop)
    yield from listing(shop)


def load(shop: Workshop, port: int, requests: Sequence[SentRequest], *, clients: int = 1, apart: bool = True) -> float:
    """Seconds until all requests were answered."""
    file = write_requests(shop.on_disk("requests") / "requests", requests)
    with on_processor(-1 if apart else None):
        done = in_fresh_process("s3_load", port=port, requests=str(file), clients=clients)
    file.unlink()
    assert done["answered"] == len(requests), f"{done['answered']} of {len(requests)} requests were answered"
    return done["seconds"]


def puts(target: S3Target, name: str, amount: int, body_bytes: int = BODY_BYTES) -> list[SentRequest]:
    return [sign(target, S3Call("PUT", f"{name}/{number:05}", body_bytes)) for number in range(amount)]


def gets(target: S3Target, name: str, amount: int) -> list[SentRequest]:
    return [sign(target, S3Call("GET", f"{name}/{number:05}")) for number in range(amount)]


def mib_rates(amount: int, seconds: Sequence[float]) -> Series:
    return rates(amount * BODY_BYTES >> 20, seconds, "MiB/s")


def bodies(shop: Workshop) -> Iterator[Row]:
    """PUT and GET of 8 MiB to a folder, one connection: against plain Starlette, and against `rclone serve s3`."""
    scale, amount = shop.scale, shop.scale.s3_bodies
    folder, bare, rclone_folder = (shop.in_memory(name) for name in ("s3", "plain", "rclone"))
    make_lake(folder)
    logs = shop.on_disk("s3")
    with ExitStack() as stack:
        _, ours = stack.enter_context(api_servers.gateway(folder, logs / "ours"))
        other = stack.enter_context(api_servers.plain(bare, logs / "plain"))
        with on_processor(0):
            rclone = stack.enter_context(RcloneS3(rclone_folder / "data"))
        theirs = S3Target(rclone.port, ACCESS_KEY, SECRET_KEY, BUCKET)
        hashed = [plain("POST", "/hashed", BODY_BYTES, 201)] * amount
        for port, warm in (
            (ours.port, puts(ours, "warm", 2)),
            (other.port, hashed[:2]),
            (rclone.port, puts(theirs, "w", 2)),
        ):
            load(shop, port, warm)

        def store_hashed(_turn: int) -> float:
            seconds = load(shop, other.port, hashed)
            for file in bare.iterdir():
                file.unlink()
            return seconds

        shop.say("s3: PUT of 8 MiB")
        put, put_plain, put_rclone = in_turns(
            scale.turns,
            lambda turn: load(shop, ours.port, puts(ours, f"put-{turn}", amount)),
            store_hashed,
            lambda turn: load(shop, rclone.port, puts(theirs, f"put-{turn}", amount)),
        )
        (bare / "file").write_bytes(bytes(BODY_BYTES))
        shop.say("s3: GET of 8 MiB")
        get, get_plain, get_rclone = in_turns(
            scale.turns,
            lambda _turn: load(shop, ours.port, gets(ours, "put-0", amount)),
            lambda _turn: load(shop, other.port, [plain("GET", "/files/file")] * amount),
            lambda _turn: load(shop, rclone.port, gets(theirs, "put-0", amount)),
        )
    for each in (folder, bare, rclone_folder):
        shop.drop(each)
    for what, own, starlette, peer in (("PUT", put, put_plain, put_rclone), ("GET", get, get_plain, get_rclone)):
        for name, seconds, share in (
            (f"plain Starlette, {'hashed into a file' if what == 'PUT' else 'from a file'}", starlette, PLAIN_SHARE),
            ("rclone serve s3", peer, RCLONE_SHARE),
        ):
            yield Row(
                what=f"{what} of 8 MiB through the S3 gateway, a folder on tmpfs, one connection",
                ours=mib_rates(amount, own),
                other=mib_rates(amount, seconds),
                other_name=name,
                bar=at_least(share),
            )


def small_objects(shop: Workshop) -> Iterator[Row]:
    """PUT and GET of 1 KiB by 16 clients, against the API of the same process."""
    scale, amount = shop.scale, shop.scale.s3_small
    folder = shop.in_memory("s3-small")
    make_lake(folder)
    with api_servers.gateway(folder, shop.on_disk("s3-small") / "log") as (server, ours):

        def ask(port: int, requests: Sequence[SentRequest]) -> float:
            return load(shop, port, requests, clients=CLIENTS)

        def through_api(server: Server, name: str) -> list[SentRequest]:
            target = f"{API}/branches/main/objects?path=api-{name}/"
            fields = {"Authorization": server.authorization, "Content-Type": "application/octet-stream"}
            return [plain("POST", f"{target}{number}", SMALL_BYTES, 201, **fields) for number in range(amount)]

        empty = [plain("GET", "/api/v1/user", Authorization=server.authorization)] * amount
        ask(ours.port, puts(ours, "warm", amount // 8, SMALL_BYTES))
        ask(server.port, through_api(server, "warm")[: amount // 8])
        ask(server.port, empty[: amount // 8])
        shop.say("s3: PUT of 1 KiB")
        put, api_put = in_turns(
            scale.turns,
            lambda turn: ask(ours.port, puts(ours, f"put-{turn}", amount, SMALL_BYTES)),
            lambda turn: ask(server.port, through_api(server, str(turn))),
        )
        shop.say("s3: GET of 1 KiB")
        get, nothing = in_turns(
            scale.turns,
            lambda turn: ask(ours.port, gets(ours, f"put-{turn}", amount)),
            lambda _turn: ask(server.port, empty),
        )
    shop.drop(folder)
    yield Row(
        what=f"GET of 1 KiB through the S3 gateway, {CLIENTS} clients",
        ours=rates(amount, get, "calls/s"),
        other=rates(amount, nothing, "calls/s"),
        other_name="an empty route: GET /api/v1/user",
        bar=at_least(SMALL_GET_SHARE),
    )
    yield Row(
        what=f"PUT of 1 KiB through the S3 gateway, {CLIENTS} clients",
        ours=rates(amount, put, "calls/s"),
        other=rates(amount, api_put, "calls/s"),
        other_name="the API's own upload of 1 KiB",
        bar=at_least(SMALL_PUT_SHARE),
    )


def before_store(shop: Workshop) -> Iterator[Row]:
    """PUT and GET of 8 MiB through the gateway before a real S3 server, against that server."""
    yield from before_limited_store(shop, f"limited to {LIMIT_MIB_PER_SECOND:g} MiB/s", LIMIT_MIB_PER_SECOND)
    yield from before_limited_store(shop, "not limited", 0.0)


def before_limited_store(shop: Workshop, name: str, limit: float) -> Iterator[Row]:
    scale, amount = shop.scale, shop.scale.s3_bodies
    folder, logs = shop.on_disk("s3-store"), shop.on_disk("s3-store-logs")
    with ExitStack() as stack:
        store = stack.enter_context(shop.own_s3())
        shop.say(f"s3: before {shop.s3_name()}, {name}")
        port = stack.enter_context(api_servers.limited(store.port, logs / "proxy", limit))
        objects = store.url(endpoint=f"http://127.0.0.1:{port}")
        make_lake(folder, objects)
        direct = S3Target(port, ACCESS_KEY, SECRET_KEY, BUCKET, f"{folder.name}/")
        _, ours = stack.enter_context(api_servers.gateway(folder, logs / "ours", apart=False, objects=objects))

        def send(target: S3Target, requests: Sequence[SentRequest]) -> float:
            return load(shop, target.port, requests, apart=False)

        for target in (ours, direct):
            send(target, puts(target, "warm", 2))
        put, put_direct = in_turns(
            scale.turns,
            lambda turn: send(ours, puts(ours, f"put-{turn}", amount)),
            lambda turn: send(direct, puts(direct, f"put-{turn}", amount)),
        )
        get, get_direct = in_turns(
            scale.turns,
            lambda turn: send(ours, gets(ours, f"put-{turn}", amount)),
            lambda turn: send(direct, gets(direct, f"put-{turn}", amount)),
        )
    for what, own, bare in (("PUT", put, put_direct), ("GET", get, get_direct)):
        yield Row(
            what=f"{what} of {amount} objects of 8 MiB through the S3 gateway before {shop.s3_name()}, {name}",
            ours=Series(own, "s"),
            other=Series(bare, "s"),
            other_name=f"{shop.s3_name()} itself, {name}",
            bar=at_most(STORE_FACTOR) if limit else None,
        )


def parts(shop: Workshop) -> Iterator[Row]:
    """An upload of 6 GiB in parts of 64 MiB, to a folder on disk."""
    amount, count = shop.scale.s3_bodies, shop.scale.s3_parts
    folder = shop.on_disk("s3-parts")
    make_lake(folder)
    with api_servers.gateway(folder, shop.on_disk("s3-parts-log") / "log") as (server, ours):
        shop.say("s3: PUT of 8 MiB to disk")
        load(shop, ours.port, puts(ours, "warm", 2))
        bodies_seconds = load(shop, ours.port, puts(ours, "bodies", amount))
        shop.say(f"s3: an upload of {count} parts of 64 MiB")
        with on_processor(-1):
            done = in_fresh_process(
                "s3_parts", port=ours.port, key_id=ours.key_id, secret=ours.secret, bucket=ours.bucket,
                key="main/parts", parts=count, part_bytes=PART_BYTES,
            )  # fmt: skip
        peak_mib = peak_mib_of(server.pid)
    shop.drop(folder)
    gib = count * PART_BYTES / (1 << 30)
    yield Row(
        what=f"resident memory of the service while {gib:g} GiB are uploaded in parts of 64 MiB",
        ours=Series((peak_mib,), "MiB"),
        bar=at_most(MEMORY_MIB_MAX),
    )
    yield Row(
        what=f"an upload of {gib:g} GiB in parts of 64 MiB, and its completion, to a folder on disk",
        ours=rates(count * PART_BYTES >> 20, (done["seconds"],), "MiB/s"),
        other=mib_rates(amount, (bodies_seconds,)),
        other_name="PUT of 8 MiB to the same",
        bar=at_least(PARTS_SHARE),
        note=f"the parts took {done['written_seconds']:.0f} of {done['seconds']:.0f} s",
    )


def peak_mib_of(pid: int) -> float:
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def listing(shop: Workshop) -> Iterator[Row]:
    """ListObjectsV2 of staged keys by obstore, against obstore listing a real S3 server; and what obstore needs for the
    same pages if nobody has to make them.
    """
    scale, store = shop.scale, shop.s3()
    shop.say(f"s3: listing {scale.staged:,} staged keys")
    folder, logs = shop.in_memory("s3-listing"), shop.on_disk("s3-listing")
    make_lake(folder)
    with lakes.open_lake(*lakes.stores_in(folder), lakes.nowhere) as lake:
        lakes.upload(lake.repository(lakes.REPOSITORY), "main", range(scale.staged))
    fill(store, [f"s3-listing/{lakes.path_of(number)}" for number in range(scale.listed)])
    with ExitStack() as stack:
        _, ours = stack.enter_context(api_servers.gateway(folder, logs / "log"))
        pages = folder / "pages"
        store_pages(ours, "main/", pages)
        ready = ours._replace(port=stack.enter_context(api_servers.prepared_pages(pages, logs / "pages")))

        def list_keys(target: S3Target, prefix: str, expected: int) -> float:
            done = in_fresh_process(
                "s3_list", port=target.port, key_id=target.key_id, secret=target.secret, bucket=target.bucket,
                prefix=prefix,
            )  # fmt: skip
            assert done["listed"] == expected, f"{done['listed']} keys were listed, not {expected}"
            return done["seconds"]

        theirs = S3Target(store.port, ACCESS_KEY, SECRET_KEY, BUCKET)
        own, peer, prepared = in_turns(
            scale.turns,
            lambda _turn: list_keys(ours, "main", scale.staged),
            lambda _turn: list_keys(theirs, "s3-listing", scale.listed),
            lambda _turn: list_keys(ready, "main", scale.staged),
        )
    for what, seconds, bar in (
        (f"ListObjectsV2 of {scale.staged:,} staged keys by obstore", own, at_least(KEYS_PER_SECOND_FACTOR)),
        ("obstore lists the same pages from a server's memory", prepared, None),
    ):
        yield Row(
            what=what,
            ours=rates(scale.staged, seconds, "keys/s"),
            other=rates(scale.listed, peer, "keys/s"),
            other_name=f"obstore lists {scale.listed:,} keys of {shop.s3_name()}",
            bar=bar,
        )
