"""Runs of which a chosen step is the last one, or fails. A step is a call of the store. A run that is killed is killed
by SIGKILL, in a process of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from multiprocessing import get_context
from typing import Any

import pytest

from refstore.errors import ObjectsUnavailable
from refstore.objects.base import ObjectStore
from refstore.objects.local import LocalObjects
from refstore_gc import anti_join
from refstore_gc.engines.choice import Engines
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_prune import PruneReport, compare, list_store, prune_sweep
from tests.engines import OneEngine
from tests.prune.given_names import GivenNames, prune

STEPS = ("put", "get", "head", "head_many", "list", "list_pages", "delete_many", "delete_unchanged")
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.prune.killed_runs", "refstore.objects.s3", "pandas"])


def in_this_process() -> Engines:
    return OneEngine(LocalEngine(shared=SharedWork(0)))


def run_once(url: str, names: Sequence[str], **options: Any) -> PruneReport:
    return prune(url, GivenNames(names), in_this_process(), grace=timedelta(0), **options)


@contextmanager
def split_work() -> Generator[None, None, None]:
    """Let a few objects make several buckets, units and batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_store, "CHUNK_ROWS", 6)
        patch.setattr(anti_join, "BUCKET_ROWS", 6)
        patch.setattr(compare, "UNIT_ROWS", 2)
        patch.setattr(prune_sweep, "BULK_KEYS", 1)
        yield


# ---- killed


def run_and_die(url: str, names: Sequence[str], step: int) -> None:
    """Make a run, and end this process by SIGKILL before a step of it."""
    with split_work(), at_each_step(LocalObjects, lambda number, call: call() if number != step else die()):
        run_once(url, names)


def run_split(url: str, names: Sequence[str]) -> None:
    with split_work():
        run_once(url, names)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- with a step that fails


@contextmanager
def at_each_step(
    driver: type[ObjectStore], make: Callable[[int, Callable[[], Any]], Any]
) -> Generator[None, None, None]:
    """Let `make` make each call of a driver's stores. It is given the call's number, from 1."""
    steps = 0

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            return make(steps, lambda: method(*args, **kwargs))

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(driver, name, wrap(getattr(driver, name)))
        yield


class OneFailure:
    """Lets one step fail: its request, or its reply, is lost; or its answer ends in the middle."""

    def __init__(self, step: int, how: str) -> None:
        self.step, self.how = step, how
        self.is_reached = self.has_failed = False

    def make(self, number: int, call: Callable[[], Any]) -> Any:
        if number != self.step:
            return call()
        self.is_reached = True
        if self.how == "request":
            self.has_failed = True
            raise ObjectsUnavailable("planted: 503, the store is overloaded")
        answer = call()
        if self.how == "reply":
            self.has_failed = True
            raise ObjectsUnavailable("planted: nobody answered in time")
        self.has_failed = hasattr(answer, "__next__")
        return _break_off(answer) if self.has_failed else answer


def _break_off(answer: Iterator[Any]) -> Iterator[Any]:
    yield from islice(answer, 1)
    raise ObjectsUnavailable("planted: the connection broke")
