"""Bound the connections of one process, in total and per client address, so that no client shuts out the others."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from refstore.configuration.settings import ApiSettings
from refstore.core import event_log
from refstore_http.http_errors import TooManyRequests
from refstore_http.login_throttle import site_of

LOG_EVERY_SECONDS: Final = 10.0
"""At most one log line about refusals in this time, so that refused clients cannot fill the log."""
FILES_EACH: Final = 2
"""Open files per connection: the socket, and the object that it reads or writes."""

_log = event_log.get_logger(__name__)


class ConnectionSlots:
    """Count the slots in use, in total and per site (`login_throttle.site_of`)."""

    def __init__(
        self, what: str, total_max: int, site_max: int, *, monotonic_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """`what`: the plural of what takes a slot, for the log."""
        self.total_max = total_max
        self.site_max = site_max
        self._what = what
        self._monotonic_seconds = monotonic_seconds
        self._total = 0
        self._by_site: Counter[bytes] = Counter()
        self._refused = 0
        self._logged_at: float | None = None

    def __len__(self) -> int:
        return self._total

    def count_sites(self) -> int:
        """Return how many sites have a slot in use."""
        return len(self._by_site)

    def take(self, address: str, *, shared: bool = False) -> bool:
        """Take a slot for the address; return False, and log it, if there is none. `shared`: the address of many
        clients, counted in the total only.
        """
        site = site_of(address)
        if self._total >= self.total_max:
            self._refuse(address, "total", self.total_max)
            return False
        if not shared:
            if self._by_site[site] >= self.site_max:
                self._refuse(address, "address", self.site_max)
                return False
            self._by_site[site] += 1
        self._total += 1
        return True

    def release(self, address: str, *, shared: bool = False) -> None:
        self._total -= 1
        if shared:
            return
        site = site_of(address)
        self._by_site[site] -= 1
        if not self._by_site[site]:
            del self._by_site[site]

    def _refuse(self, address: str, bound: str, most: int) -> None:
        self._refused += 1
        now = self._monotonic_seconds()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_SECONDS:
            _log.warning("too_many_" + self._what, client=address, bound=bound, most=most, refused=self._refused)
            self._logged_at, self._refused = now, 0


class ProxyNetworks:
    """The networks of `api.trusted_proxies`. A proxy there may name its client, and connects for many clients."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._networks: tuple[IPv4Network | IPv6Network, ...] = tuple(ip_network(text) for text in networks)

    def __contains__(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def plain_address(address: str) -> str:
    """Return the plain form of an IPv4 address that an IPv6 socket shows as `::ffff:192.0.2.1`."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped) if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None else address


def connection_slots(settings: ApiSettings) -> ConnectionSlots:
    """Make the connection slots: as many as the settings say, bounded by the process's limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.connections_max * FILES_EACH
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    total_max = settings.connections_max
    if soft != resource.RLIM_INFINITY and soft < needed:
        total_max = max(1, soft // FILES_EACH)
        _log.warning(
            "fewer_connections_than_set",
            connections_max=settings.connections_max,
            most=total_max,
            open_files_limit=soft,
        )
    return ConnectionSlots("connections", total_max, _share(total_max))


def request_slots(settings: ApiSettings) -> ConnectionSlots:
    """Make slots for the running requests of clients behind proxies. Each client gets as many as it could have
    connections.
    """
    return ConnectionSlots("requests", settings.connections_max, _share(settings.connections_max))


def take_slot(slots: ConnectionSlots | None, client: str) -> bool:
    """Take a slot for a client behind a proxy; return whether there is one to release. Raises TooManyRequests."""
    if slots is None:
        return False
    if not slots.take(client):
        raise TooManyRequests("too many requests from this client's address are running; send fewer at a time")
    return True


def _share(total_max: int) -> int:
    """Return how many of them one address gets: half, so that nobody alone can take all."""
    return max(1, total_max // 2)
