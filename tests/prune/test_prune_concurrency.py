"""Writers upload, name, overwrite and unname, in threads of their own, while runs go on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from refstore_prune.sources.base import NamePart
from tests.prune.folders import DAY, stored_keys
from tests.prune.given_names import GivenNames, prune
from tests.prune.killed_runs import in_this_process, split_work

RUNS = 6
LIVES_PER_RUN = 60


class Database:
    """What is named, and with which content."""

    def __init__(self) -> None:
        self.named: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def read(self) -> list[str]:
        with self.lock:
            return [*self.named]


class DatabaseNames(GivenNames):
    min_age = timedelta(days=1)

    def __init__(self, database: Database) -> None:
        super().__init__([])
        self._database = database

    def parts(self) -> Iterator[NamePart]:
        """Read it page by page, as a query does that sees its own beginning."""
        names = self._database.read()
        for at in range(0, len(names), 7):
            yield pa.array(names[at : at + 7], pa.string())


class Writer(threading.Thread):
    """Writes objects below a folder of its own. What is unnamed it never names again."""

    def __init__(self, number: int, store: Path, database: Database) -> None:
        super().__init__(name=f"writer-{number}")
        self._rng, self._prefix, self._store, self._database = Random(number), f"w{number}/", store, database
        self._waiting = store.parent / f"waiting-{number}"
        self.garbage: set[str] = set()
        self.lives = threading.Semaphore(0)
        """How many objects it may still write: each run that begins lets it write more."""

    def run(self) -> None:
        mine: list[str] = []
        for number in range(RUNS * LIVES_PER_RUN):
            self.lives.acquire()
            key = f"{self._prefix}{number % 5}/{number}"
            body = self._write(key)
            if self._rng.random() < 0.2:
                self.garbage.add(key)  # its upload is never named
            else:
                mine.append(key)
                self._give_name(key, body)
            self._age(self._rng.choice([*mine, key]))
            if mine and self._rng.random() < 0.3:
                again = self._rng.choice(mine)
                self._give_name(again, self._write(again))
            if mine and self._rng.random() < 0.6:
                gone = mine.pop(self._rng.randrange(len(mine)))
                with self._database.lock:
                    del self._database.named[gone]
                self.garbage.add(gone)
                self._age(gone)
        for key in self.garbage:
            self._age(key)

    def _write(self, key: str) -> bytes:
        """Write an object, new or over another one, as whole as a store does."""
        body = self._rng.randbytes(6)
        self._waiting.write_bytes(body)
        (self._store / key).parent.mkdir(parents=True, exist_ok=True)
        self._waiting.replace(self._store / key)
        return body

    def _give_name(self, key: str, body: bytes) -> None:
        with self._database.lock:
            self._database.named[key] = body

    def _age(self, key: str) -> None:
        """Let time pass for an object. A run may have deleted it, if it is garbage."""
        try:
            at = (self._store / key).stat().st_mtime - 30 * DAY
            os.utime(self._store / key, (at, at))
        except FileNotFoundError:
            assert key in self.garbage


@pytest.mark.parametrize("seed", [0, 3])
def test_writers_at_work(tmp_path: Path, seed: int) -> None:
    store, database = tmp_path / "store", Database()
    store.mkdir()
    (store / "first").write_bytes(b"x")
    database.named["first"] = b"x"
    url, engines = f"file://{store}?fsync=0", in_this_process()
    writers = [Writer(seed + number, store, database) for number in range(3)]
    deleted = 0
    with split_work():
        for writer in writers:
            writer.start()
        for _ in range(RUNS):
            for writer in writers:
                writer.lives.release(LIVES_PER_RUN)
            report = prune(url, DatabaseNames(database), engines, consent=["few-found", "fewer-names"])
            deleted += sum(of.objects for of in report.outcomes.values())
            for key in database.read():
                assert (store / key).exists() or key not in database.read()
        for writer in writers:
            writer.join()
        for _ in range(2):
            report = prune(url, DatabaseNames(database), engines, consent=["few-found", "fewer-names"])
            deleted += sum(of.objects for of in report.outcomes.values())
    assert {key: (store / key).read_bytes() for key in database.named} == database.named
    assert stored_keys(store) == {*database.named}
    assert deleted
