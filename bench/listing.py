"""Listing staged objects: against boto3 listing objects of a real S3 server, and the commands' tables against their
JSON.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

from bench import lakes
from bench.measure import Row, Series, at_least, at_most, in_turns, rates, seconds_of
from bench.workshop import Workshop
from refstore.lake import Lake
from tests.servers.s3_base import BUCKET, S3Server

KEYS_PER_SECOND_FACTOR = 5
PRINTED_FACTOR = 3
FILLERS = 4


def run(shop: Workshop) -> Iterator[Row]:
    scale = shop.scale
    server = shop.s3()
    shop.say(f"listing: putting {scale.listed:,} objects into {shop.s3_name()}")
    fill(server, [f"listing/{lakes.path_of(number)}" for number in range(scale.listed)])
    with server.client() as client:

        def list_bucket(_turn: int) -> float:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="listing/")
            count = 0

            def read() -> None:
                nonlocal count
                count = sum(len(page.get("Contents", ())) for page in pages)

            seconds = seconds_of(read)
            assert count == scale.listed, f"the server listed {count} objects, not {scale.listed}"
            return seconds

        for name, kv_url in (("Redis", shop.redis().url), ("SQLite", lakes.stores_in(shop.on_disk("listing"))[0])):
            shop.say(f"listing: staging {scale.staged:,} objects on {name}")
            with lakes.open_lake(kv_url, f"memory://listing-{name}", lakes.nowhere) as lake:
                lakes.upload(lake.create_repository(lakes.REPOSITORY), "main", range(scale.staged))
                ours, theirs = in_turns(
                    shop.scale.turns, lambda _turn, lake=lake: list_staged(lake, "main", scale.staged), list_bucket
                )
            yield Row(
                what=f"list {scale.staged:,} staged objects on {name}",
                ours=rates(scale.staged, ours, "keys/s"),
                other=rates(scale.listed, theirs, "keys/s"),
                other_name=f"boto3 lists {scale.listed:,} objects of {shop.s3_name()}",
                bar=at_least(KEYS_PER_SECOND_FACTOR),
                note="Repository.list, every page and entry",
            )
    yield from printed(shop)


def printed(shop: Workshop) -> Iterator[Row]:
    """What `ls` and `diff` take to print every row for people, against the same rows with --json."""
    count, folder = shop.scale.staged, shop.on_disk("printed")
    shop.say(f"listing: staging {count:,} objects for the commands")
    with lakes.open_lake(*lakes.stores_in(folder), lakes.nowhere) as lake:
        lakes.upload(lake.create_repository(lakes.REPOSITORY), "main", range(count))
    for words in (("ls", lakes.REPOSITORY, "main", "--recursive"), ("diff", lakes.REPOSITORY, "main")):
        seen: list[tuple[float, float]] = []

        def table(_turn: int, words: tuple[str, ...] = words, seen: list[tuple[float, float]] = seen) -> float:
            seen.append(print_all(folder, words, count))
            return seen[-1][1]

        ours, theirs = in_turns(
            shop.scale.turns, table, lambda _turn, words=words: print_all(folder, (*words, "--json"), count)[1]
        )
        what = f"refstore {words[0]} of {count:,} staged objects, printed for people"
        yield Row(
            what=what,
            ours=Series(ours, "s"),
            other=Series(theirs, "s"),
            other_name="with --json",
            bar=at_most(PRINTED_FACTOR),
        )
        first = Series(tuple(first for first, _ in seen), "s")
        yield Row(
            what=f"refstore {words[0]}: until the first row is out",
            ours=first,
            other=Series(ours, "s"),
            other_name="until the last",
        )


def print_all(folder: Path, words: tuple[str, ...], count: int) -> tuple[float, float]:
    """Seconds until the first row was read from the command's output, and until the last."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "refstore", "--data", str(folder), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the titles, or the bracket
        process.stdout.readline()
        first = time.perf_counter() - began
        lines = 1 + sum(1 for _ in process.stdout)
    assert process.returncode == 0, f"{words[0]} ended with {process.returncode}"
    assert count <= lines <= count + 1, f"{words[0]} printed {lines} lines of {count} objects"
    return first, time.perf_counter() - began


def list_staged(lake: Lake, branch: str, count: int) -> float:
    """Seconds for the whole branch, as a user lists it."""
    repo = lake.repository(lakes.REPOSITORY)
    listed = 0

    def read() -> None:
        nonlocal listed
        listed = sum(1 for _ in repo.list(branch))

    seconds = seconds_of(read)
    assert listed == count, f"{listed} objects were listed, not {count}"
    return seconds


def fill(server: S3Server, keys: list[str]) -> None:
    """Put small objects by bare HTTP, which the bucket is opened for: signing each with boto3 would take minutes."""
    with server.client() as client:
        client.put_bucket_acl(Bucket=BUCKET, ACL="public-read-write")

    def put(some: list[str]) -> None:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        for key in some:
            connection.request("PUT", f"/{BUCKET}/{key}", body=b"x" * lakes.BODY_BYTES)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the S3 server answered a put with {answer.status}")
        connection.close()

    with ThreadPoolExecutor(FILLERS) as pool:
        list(pool.map(put, [keys[start::FILLERS] for start in range(FILLERS)]))
