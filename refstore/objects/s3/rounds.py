"""Doing something to many keys at a store that answers per key: what was refused for the moment is tried again, in a
bounded number of rounds with jittered pauses, and what is left is told with the store's reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from refstore.core.clock import Clock
from refstore.errors import RefstoreError

ROUNDS_MAX: Final = 4
WHOLE_ROUNDS_MAX: Final = 2
"""For requests that failed as a whole: the client below has tried each of them several times already."""
_PAUSE_SECONDS: Final = 0.25
"""The first pause is at most this, each next one at most twice the one before."""


class Refusal(NamedTuple):
    reason: str
    again: bool
    """Whether the same may succeed in another round."""
    missing: bool = False
    """There was no such key."""
    cause: RefstoreError | None = None
    """Where the whole request failed, and so this key with it."""


class Outcome(NamedTuple):
    done: tuple[str, ...]
    missing: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


Once = Callable[[Sequence[str]], Mapping[str, Refusal]]
"""One try for some keys: what was refused. A key that is not in the answer was done."""


def in_rounds(keys: Sequence[str], once: Once, clock: Clock, rng: random.Random) -> dict[str, Refusal]:
    """What is still refused after the last round."""
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
    """Sorts `keys` by what became of them. Raises the store's error if it did not answer for a single one."""
    missing = tuple(key for key, refusal in refused.items() if refusal.missing)
    failed = tuple((key, refusal.reason) for key, refusal in refused.items() if not refusal.missing)
    causes = [refusal.cause for refusal in refused.values() if refusal.cause is not None]
    if causes and len(causes) == len(keys):
        raise causes[0]
    return Outcome(tuple(key for key in keys if key not in refused), missing, failed)
