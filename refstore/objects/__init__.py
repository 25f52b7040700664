"""Object stores: one interface (`base.py`), and a driver for each URL scheme, imported when its URL is first opened.

Other packages bring drivers for other schemes by entry points of the group `refstore.objects` (docs/drivers.md).
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from refstore.core.clock import Clock, SystemClock
from refstore.core.driver_entry_points import OBJECT_DRIVERS, BuiltInDriver, find_opener
from refstore.errors import InvalidSettings
from refstore.objects.base import ObjectStore
from refstore.objects.read_only import ReadOnlyObjects
from refstore.objects.store_urls import child, parse_store_url

__all__ = ["ObjectStore", "OpenOptions", "child", "make_objects", "open_objects"]


class OpenOptions(NamedTuple):
    """The arguments that a driver gets besides its URL."""

    clock: Clock
    """For pauses between attempts, and the time stamps of the memory store."""
    rng: random.Random
    """For the jitter of those pauses."""
    io_timeout_seconds: float
    """How long one request to the store may take, retries included (`Safety.io_timeout_seconds`)."""
    create: bool = False
    """Whether to make what the store needs, such as its folder. False: a store that is not there does not answer. It is
    true only where a lake or a repository is created.
    """


_BUILT_IN: Final = {
    "file": BuiltInDriver("refstore.objects.local:open_local"),
    "s3": BuiltInDriver("refstore.objects.s3:open_s3", "s3"),
    "memory": BuiltInDriver("refstore.objects.memory:open_memory"),
}

_NOTHING_TO_MAKE: Final = ("s3", "memory")


def open_objects(
    url: str,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    io_timeout_seconds: float = 60.0,
    create: bool = False,
    read_only: bool = False,
) -> ObjectStore:
    """Open the store of one namespace. Raises InvalidSettings if no driver understands the URL, and MissingExtra if the
    packages of the driver are not installed.

    `create`: make what the store needs. Only `make_objects` does: what is gone later may be on a disk that is not
    mounted, and must not be made again. `read_only`: whatever writes raises LakeReadOnly.
    """
    parsed = parse_store_url(url)
    # jitter, not a secret
    options = OpenOptions(clock or SystemClock(), rng or random.Random(), io_timeout_seconds, create)  # noqa: S311  # pauses
    refusal = f"{parsed.scheme}:// is not the URL of an object store"
    store: object = find_opener(OBJECT_DRIVERS, parsed.scheme, _BUILT_IN, refusal)(parsed, options)
    if not isinstance(store, ObjectStore):
        raise InvalidSettings(
            f"the driver for {parsed.scheme}:// opened a {type(store).__name__}; it must return a subclass of "
            "refstore.objects.base.ObjectStore"
        )
    return ReadOnlyObjects(store) if read_only else store


def make_objects(url: str) -> None:
    """Make what the store of a new lake or repository needs, such as its folder. Raises as `open_objects`, and
    ObjectsUnavailable, StoreMisconfigured.
    """
    if parse_store_url(url).scheme not in _NOTHING_TO_MAKE:
        open_objects(url, create=True).close()
