"""Repeat an operation on many keys of a store that answers for each key. Keys that fail for the moment are tried again,
in a bounded number of rounds with jittered pauses. The keys that still fail are returned with the store's reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from refstore.core.clock import Clock
from refstore.errors import ObjectsRefused, RefstoreError

ROUNDS_MAX: Final = 4
WHOLE_ROUNDS_MAX: Final = 2
"""The limit for requests that failed as a whole: the client has tried each of them several times already."""
_PAUSE_SECONDS: Final = 0.25
"""The first pause lasts at most this long, each next one at most twice as long as the one before."""


class Refusal(NamedTuple):
    reason: str
    again: bool
    """Whether another round may succeed."""
    missing: bool = False
    """Whether the key did not exist."""
    cause: RefstoreError | None = None
    """The error of the whole request, if the whole request failed."""


def refusal_of(error: RefstoreError) -> Refusal:
    """Return the refusal of a key whose whole request failed. Who is refused now is refused in a second, too."""
    return Refusal(str(error), again=error.retryable and not isinstance(error, ObjectsRefused), cause=error)


class Outcome(NamedTuple):
    done: tuple[str, ...]
    missing: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


Once = Callable[[Sequence[str]], Mapping[str, Refusal]]
"""One attempt for some keys. It returns the refused keys; all others were done."""


def in_rounds(keys: Sequence[str], once: Once, clock: Clock, rng: random.Random) -> dict[str, Refusal]:
    """Return the keys that are still refused after the last round."""
    refused: dict[str, Refusal] = {}
    pending = keys
    for number in range(ROUNDS_MAX):
        if number:
            clock.sleep(rng.uniform(0, _PAUSE_SECONDS * 2 ** (number - 1)))
        answer = once(pending)
        for key in pending:
            refused.pop(key, None)
        refused.update(answer)
        pending = [
            key
            for key, refusal in answer.items()
            if refusal.again and (refusal.cause is None or number + 1 < WHOLE_ROUNDS_MAX)
        ]
        if not pending:
            break
    return refused


def outcome(keys: Sequence[str], refused: Mapping[str, Refusal]) -> Outcome:
    """Sort `keys` by their outcome. Raises the store's error if the store answered for none of them."""
    missing = tuple(key for key, refusal in refused.items() if refusal.missing)
    failed = tuple((key, refusal.reason) for key, refusal in refused.items() if not refusal.missing)
    causes = [refusal.cause for refusal in refused.values() if refusal.cause is not None]
    if causes and len(causes) == len(keys):
        raise causes[0]
    return Outcome(tuple(key for key in keys if key not in refused), missing, failed)
