"""Reaping from a real S3 server, against bare boto3 bulk deletes of as many keys over as many connections.

Ours is the whole job, as in `reaping.py`, with the KV in SQLite on tmpfs and the journal on the same S3 server.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from bench import lakes
from bench.listing import fill
from bench.measure import Row, at_least, in_fresh_process, in_turns, rates, seconds_of
from bench.workshop import Workshop
from refstore.objects.s3.client import CONCURRENT_REQUESTS
from tests.servers.s3_base import BUCKET, S3Server

FACTOR = 0.85
DELETE_KEYS = 1000
"""S3's own limit."""


def run(shop: Workshop) -> Iterator[Row]:
    count, turns = shop.scale.reaped_s3, shop.scale.long_turns
    server = shop.s3()

    def ours(number: int) -> float:
        shop.say(f"reaping on {shop.s3_name()}: turn {number + 1} of {turns}")
        kv_url, objects_url = lakes.stores_in(shop.in_memory("s3"))[0], server.url()
        blobs: list[str] = []
        with lakes.open_lake(kv_url, objects_url, lambda key, _body: blobs.append(key)) as lake:
            repo = lake.create_repository(lakes.REPOSITORY)
            lakes.upload(repo, "main", range(count))
            repo.reset("main")
            namespace = urlsplit(repo.record.namespace).path.strip("/")
        fill(server, [f"{namespace}/{key}" for key in blobs])
        done = in_fresh_process("reap_at", kv=kv_url, objects=objects_url)
        assert done["deleted"] == count, f"{done['deleted']} of {count} were deleted"
        assert not left(server, f"{namespace}/data/"), "objects are left on the server"
        return done["seconds"]

    def bare(number: int) -> float:
        keys = [f"bare-{number}/{lakes.path_of(at)}" for at in range(count)]
        fill(server, keys)
        seconds = delete_bare(server, keys)
        assert not left(server, f"bare-{number}/"), "objects are left on the server"
        return seconds

    mine, theirs = in_turns(turns, ours, bare)
    yield Row(
        what=f"reap {count:,} objects of a reset branch on {shop.s3_name()}, no grace",
        ours=rates(count, mine, "objects/s"),
        other=rates(count, theirs, "objects/s"),
        other_name=f"boto3 delete_objects by {DELETE_KEYS}, {CONCURRENT_REQUESTS} connections",
        bar=at_least(FACTOR),
    )


def delete_bare(server: S3Server, keys: list[str]) -> float:
    batches = [keys[start : start + DELETE_KEYS] for start in range(0, len(keys), DELETE_KEYS)]
    with server.client() as client, ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        client.list_buckets()  # connected, as a reaper is that runs for ever

        def delete(batch: list[str]) -> None:
            answer = client.delete_objects(
                Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True}
            )
            assert "Errors" not in answer, answer["Errors"][:3]

        return seconds_of(lambda: list(pool.map(delete, batches)))


def left(server: S3Server, prefix: str) -> int:
    with server.client() as client:
        return client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["KeyCount"]
