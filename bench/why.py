"""How long `refstore why` takes for an address among those that 1,000 runs of the offline job have deleted.

Each run has deleted 100,000 addresses that were generated at any time of three years, so every file of the index may
have every address: that is the worst case. A turn is the whole command, its start included, about another address.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import lakes
from bench.measure import Row, Series, at_most, seconds_of
from bench.workshop import Workshop
from refstore.core.arrow_arrays import make_array, make_scalar
from refstore.deletion_history import deletion_index
from refstore.gc_marks import RunState
from refstore.lake import open_lake_at
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.mark_records import GcRun
from refstore.repository import Repository
from refstore_gc import deletion_index_writer
from refstore_gc.untyped_arrow import pa

SECONDS: Final = 3.0
DELETIONS: Final = 100_000
"""Of each run."""
TURNS: Final = 5
HOURS: Final = 3 * 365 * 24
DIGITS: Final = np.frombuffer(b"0123456789abcdefghjkmnpqrstvwxyz", np.uint8)
ID_LENGTH: Final = 26


def run(shop: Workshop) -> Iterator[Row]:
    runs = shop.scale.swept_runs
    folder = shop.on_disk("why")
    with open_lake_at(*lakes.stores_in(folder)) as lake:
        repo = lake.create_repository(lakes.REPOSITORY)
        shop.say(f"why: writing the index of {runs:,} runs of {DELETIONS:,} deletions")
        every = [_write_run(repo, number) for number in range(runs)]
        size = sum(info.size_bytes for info in deletion_index.read_index(repo.context.objects).files)
    shop.say("why: asking")
    asked = [every[runs * turn // TURNS] for turn in range(TURNS)]
    seconds = [seconds_of(lambda address=address: _ask(folder, address)) for address in asked]
    yield Row(
        what=f"`refstore why` of an address among {runs * DELETIONS:,} deletions by {runs:,} runs, local files on disk",
        ours=Series(tuple(seconds), "s"),
        bar=at_most(SECONDS),
        note=f"the index has {size / runs / DELETIONS:.1f} bytes for each deletion",
    )
    shop.drop(folder)


def _write_run(repo: Repository, number: int) -> str:
    """Write the record and the index file of a swept run. Return one of its addresses."""
    mark_id, at_ms = f"mark-{number:06d}", 1_700_000_000_000 + number
    record = GcRun("w", RunState.SWEPT, at_ms, 0, at_ms, "abc", finished_ms=at_ms, swept_ms=at_ms)
    repo.context.kv.set(keys.gc_run(repo.context.repo, mark_id), encode(record))
    addresses = _addresses(np.random.default_rng(number))
    values = {
        "at_ms": at_ms,
        "size_bytes": 1_000_000,
        "by": "sweep",
        "run": mark_id,
        "outcome": "deleted",
        "cause": "expired",
        "rule": "retention rules 0123456789ab: branch 'main': 30 days (1 commits); no active commit named it",
    }
    columns = [
        addresses if field.name == "key" else pa.repeat(make_scalar(values.get(field.name, ""), field.type), DELETIONS)
        for field in deletion_index.schema()
    ]
    table = pa.table(columns, schema=deletion_index.schema())
    deletion_index_writer.write_file(repo.context.objects, deletion_index.sweep_file(mark_id, 0, 1), [table], [])
    return addresses[number * 61 % DELETIONS].as_py()


def _addresses(random: np.random.Generator) -> Any:
    """Return addresses of any hour of three years. Their order does not matter."""
    hours = np.char.add(
        "data/",
        np.datetime_as_string(np.datetime64("2023-01-01T00", "h") + random.integers(0, HOURS, DELETIONS), unit="h"),
    )
    ids = DIGITS[random.integers(0, len(DIGITS), (DELETIONS, ID_LENGTH))].view(f"S{ID_LENGTH}").ravel().astype(str)
    folders = np.char.replace(np.char.replace(hours, "-", ""), "T", "")
    return make_array(np.char.add(np.char.add(folders, "/"), ids).tolist(), pa.string())


def _ask(folder: Path, address: str) -> None:
    """Ask in a process of its own, and check the answer."""
    command = [sys.executable, "-m", "refstore", "--data", str(folder), "--json", "why", lakes.REPOSITORY, address]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    (told,) = answer["deletions"]
    assert (told["by"], told["outcome"]) == ("sweep", "deleted"), told
