"""Repeat an operation on many keys of a store that answers for each key. Keys that fail for the moment are tried again,
in a bounded number of rounds with jittered pauses. The keys that still fail are returned with the store's reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from refstore.core.clock import Clock
from refstore.errors import RefstoreError

ROUNDS_MAX: Final = 4
WHOLE_ROUNDS_MAX: Final = 2
"""The limit for requests that failed as a whole: the client has tried each of them several times already."""
_PAUSE_SECONDS: Final = 0.25
"""The first pause lasts at most this long, each next one at most twice as long as the one before."""


class KeyRefusal(NamedTuple):
    reason: str
    is_retryable: bool
    """Whether another round may succeed."""
    is_missing: bool = False
    """Whether the key did not exist."""
    cause: RefstoreError | None = None
    """The error of the whole request, if the whole request failed."""


def refusal_of(error: RefstoreError) -> KeyRefusal:
    """Return the refusal of a key whose whole request failed. Who is refused now is refused in a second, too."""
    return KeyRefusal(str(error), is_retryable=error.retryable, cause=error)


class BulkOutcome(NamedTuple):
    done_keys: tuple[str, ...]
    missing_keys: tuple[str, ...]
    failed_keys: tuple[tuple[str, str], ...]


BulkAttempt = Callable[[Sequence[str]], Mapping[str, KeyRefusal]]
"""One attempt for some keys. It returns the refused keys; all others were done."""


def retry_in_rounds(keys: Sequence[str], once: BulkAttempt, clock: Clock, rng: random.Random) -> dict[str, KeyRefusal]:
    """Return the keys that are still refused after the last round."""
    refused: dict[str, KeyRefusal] = {}
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
            if refusal.is_retryable and (refusal.cause is None or number + 1 < WHOLE_ROUNDS_MAX)
        ]
        if not pending:
            break
    return refused


def sort_outcomes(keys: Sequence[str], refused: Mapping[str, KeyRefusal]) -> BulkOutcome:
    """Sort `keys` by their outcome. Raises the store's error if the store answered for none of them."""
    missing = tuple(key for key, refusal in refused.items() if refusal.is_missing)
    failed = tuple((key, refusal.reason) for key, refusal in refused.items() if not refusal.is_missing)
    causes = [refusal.cause for refusal in refused.values() if refusal.cause is not None]
    if causes and len(causes) == len(keys):
        raise causes[0]
    return BulkOutcome(tuple(key for key in keys if key not in refused), missing, failed)
