"""An import, from its first listed name to its commit, against the bare listing of the same source by the same
store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bench import lakes
from bench.listing import fill
from bench.measure import Row, at_least, in_turns, rates, seconds_of
from bench.workshop import Workshop, make_lake
from refstore.lake import Lake
from refstore.objects import open_objects
from refstore.records.repository_records import ImportSource
from tests.servers.s3_base import BUCKET

FACTOR = 0.5
FOLDER_FILES = 1000


def run(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.committed
    folder = shop.in_memory("imported")
    shop.say(f"imports: making {count:,} files")
    make_files(folder, count)
    yield _against_listing(
        shop, f"import {count:,} files of a local folder", f"file://{folder}", f"file://{folder}", count
    )
    shop.drop(folder)

    count, server = shop.scale.listed, shop.s3()
    shop.say(f"imports: putting {count:,} objects into {shop.s3_name()}")
    fill(server, [f"imports/{lakes.path_of(number)}" for number in range(count)])
    listed = server.url("imports")
    options = listed.partition("?")[2].replace("&conditional_put=0", "")
    yield _against_listing(
        shop, f"import {count:,} objects of {shop.s3_name()}", f"s3://{BUCKET}/imports/?{options}", listed, count
    )


def _against_listing(shop: Workshop, what: str, source: str, store_url: str, count: int) -> Row:
    lake_folder = shop.in_memory("imports")
    make_lake(lake_folder)
    kv_url, objects_url = lakes.stores_in(lake_folder)
    store = open_objects(store_url)
    with lakes.open_lake(kv_url, objects_url) as lake:

        def bring(turn: int) -> float:
            return seconds_of(lambda: import_into(lake, turn, source, count))

        def list_it(_turn: int) -> float:
            def read() -> None:
                listed = sum(1 for _ in store.list())
                assert listed == count, f"{listed} were listed, not {count}"

            return seconds_of(read)

        shop.say(f"imports: {what}")
        ours, theirs = in_turns(shop.scale.long_turns, bring, list_it)
    store.close()
    shop.drop(lake_folder)
    return Row(
        what=what,
        ours=rates(count, ours, "objects/s"),
        other=rates(count, theirs, "objects/s"),
        other_name="the store's own list of the same",
        bar=at_least(FACTOR),
        note="listed, ranges written, committed",
    )


def import_into(lake: Lake, turn: int, source: str, count: int) -> None:
    """Onto a branch of its own, so that every turn writes everything."""
    repo = lake.repository(lakes.REPOSITORY)
    repo.create_branch(f"imported-{turn}", source="main")
    done = repo.import_objects(f"imported-{turn}", [ImportSource(source, "raw/")], "import")
    assert done.objects == count, f"{done.objects} were imported, not {count}"


def make_files(folder: Path, count: int) -> None:
    """Empty ones, FOLDER_FILES in each folder."""
    for start in range(0, count, FOLDER_FILES):
        below = folder / f"day={start // FOLDER_FILES // 24:05d}" / f"hour={start // FOLDER_FILES % 24:02d}"
        below.mkdir(parents=True)
        opened = os.open(below, os.O_RDONLY)
        try:
            for number in range(start, min(start + FOLDER_FILES, count)):
                os.close(os.open(f"part-{number:08d}.parquet", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=opened))
        finally:
            os.close(opened)
