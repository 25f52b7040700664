"""Object stores: one interface (`base.py`), drivers beside it, found by URL scheme and loaded only when asked for."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from refstore.clock import Clock, SystemClock
from refstore.errors import InvalidSettings, MissingExtra
from refstore.objects.base import ObjectStore
from refstore.objects.urls import StoreURL, child, parse, redact

__all__ = ["ObjectStore", "OpenOptions", "child", "open_objects", "redact"]


class OpenOptions(NamedTuple):
    """What a driver is given besides its URL."""

    clock: Clock
    """For pauses between attempts, and the time stamps of the memory store."""
    rng: random.Random
    """For the jitter of those pauses."""
    io_timeout_seconds: float
    """How long one request to the store may be under way, retries included (`Safety.io_timeout_seconds`)."""


class _Driver(NamedTuple):
    module: str
    factory: str
    extra: str | None
    """The optional dependency that brings what the driver imports."""


_DRIVERS: Final = {
    "file": _Driver("refstore.objects.local", "open_local", None),
    "s3": _Driver("refstore.objects.s3", "open_s3", "s3"),
    "memory": _Driver("refstore.objects.memory", "open_memory", None),
}


def open_objects(
    url: str, *, clock: Clock | None = None, rng: random.Random | None = None, io_timeout_seconds: float = 60.0
) -> ObjectStore:
    """The store of one namespace. Raises InvalidSettings for a URL it does not understand, MissingExtra for a driver not installed."""
    parsed = parse(url)
    driver = _DRIVERS.get(parsed.scheme)
    if driver is None:
        raise InvalidSettings(
            f"{parsed.scheme}:// is no object store that refstore knows; use one of {', '.join(f'{s}://' for s in _DRIVERS)}"
        )
    try:
        module = importlib.import_module(driver.module)
    except ModuleNotFoundError as error:
        if driver.extra is None or (error.name or "").startswith("refstore"):
            raise
        raise MissingExtra(driver.extra, f"{parsed.scheme}:// object stores") from error
    factory = cast("Callable[[StoreURL, OpenOptions], ObjectStore]", getattr(module, driver.factory))
    return factory(parsed, OpenOptions(clock or SystemClock(), rng or random.Random(), io_timeout_seconds))  # noqa: S311  # jitter, not a secret
