"""Rule 24 dropped, piece by piece: transactions."""

from __future__ import annotations

from .offline import Proto


class EndsAtOnce(Proto):
    """Rule 24 dropped: a transaction is ended while the operation that merges it may be under way."""

    waits_for_operations = False


class EndsWhatWasRenewed(Proto):
    """Rule 24 dropped: whoever ends a transaction does not ask whether its lease was renewed since."""

    compares_leases = False


class MergesUnrenewed(Proto):
    """Rule 24 dropped: a merge begins under the lease that it finds."""

    renews_first = False
