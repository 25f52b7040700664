"""`refstore why`: what is known of a physical address, from the live records and from the journal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from reaper import journal
from refstore.context import Context
from refstore.errors import AddressNotFound
from refstore.flows import viewing
from refstore.flows.viewing import AddressState, AddressView
from refstore.ids import Address


class Why(NamedTuple):
    view: AddressView
    """Who names it now, and in which state."""
    events: tuple[journal.Event, ...]
    """Its deletions, oldest first. More than one where the first was interrupted, or the store refused."""


def why(ctx: Context, address: str) -> Why:
    """Raises InvalidName, AddressNotFound. The journal is read from the hour on in which the address was made."""
    view = viewing.view(ctx, address)
    found = tuple(journal.find(ctx.objects, view.address, since_ms=_made_ms(ctx, view.address)))
    if view.state is AddressState.GONE and not found:
        raise AddressNotFound(
            f"{address} is not in {ctx.name!r}: nothing names it, there is no blob, and the journal does not know it;"
            " see that the repository is the right one"
        )
    return Why(view, found)


def _made_ms(ctx: Context, address: Address) -> int:
    """The beginning of the address's slice; before that it cannot have been deleted, whichever clock made it."""
    try:
        hour = datetime.strptime(address.split("/")[1], "%Y%m%d%H").replace(tzinfo=UTC)
    except ValueError:
        return 0  # an hour that no calendar has: then the whole journal
    return max(0, int((hour.timestamp() - ctx.safety.clock_skew_seconds) * 1000))
