"""Parse pinned buckets: names that S3 clients use for one branch of a repository, in a setting or of an access key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from refstore.errors import Invalid

_PINNED_BUCKET: Final = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])=(?P<repository>[a-z0-9][a-z0-9-]{2,62}):(?P<branch>[A-Za-z0-9_./-]+)"
)


class PinnedBucket(NamedTuple):
    name: str
    repository: str
    branch: str


@lru_cache(maxsize=4096)
def _parse(texts: tuple[str, ...]) -> dict[str, PinnedBucket]:
    buckets: dict[str, PinnedBucket] = {}
    for text in texts:
        match = _PINNED_BUCKET.fullmatch(text)
        if match is None:
            raise Invalid(f"{text[:120]!r} pins no bucket; write NAME=REPOSITORY:BRANCH, such as warehouse=lake:main")
        if match["name"] in buckets:
            raise Invalid(f"{match['name']!r} is pinned twice; give each bucket one branch")
        buckets[match["name"]] = PinnedBucket(match["name"], match["repository"], match["branch"])
    return buckets


def parse_pinned_buckets(texts: Sequence[str]) -> dict[str, PinnedBucket]:
    """Return the buckets by name. Raises Invalid."""
    return _parse(tuple(texts))
