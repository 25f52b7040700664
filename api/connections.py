"""How many connections one process holds, in all and by client address, so that no client's connections shut out everybody else's."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import structlog

from api.guessing import site_of
from refstore.settings import ApiSettings

LOG_EVERY_SECONDS: Final = 10.0
"""At most one line about refusals in so long: whoever is refused must not fill the log."""
FILES_EACH: Final = 2
"""Open files for each connection: its own, and that of an object that it reads or writes."""

_log = structlog.stdlib.get_logger(__name__)


class Slots:
    """Slots in use, in all and by site (`guessing.site_of`)."""

    def __init__(self, what: str, total_max: int, site_max: int, *, monotonic_seconds: Callable[[], float] = time.monotonic) -> None:
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

    def take(self, address: str, *, shared: bool = False) -> bool:
        """Take a slot for the address; False: there is none, and that is logged. `shared`: many clients' address, counted in all only."""
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


class Proxies:
    """The networks of `api.trusted_proxies`: who connects from there may name the client, and connects for many."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._networks: tuple[IPv4Network | IPv6Network, ...] = tuple(ip_network(text) for text in networks)

    def __contains__(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)


def plain(address: str) -> str:
    """An IPv4 address that a socket of IPv6 names `::ffff:192.0.2.1`, as everybody else names it."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped) if isinstance(found, IPv6Address) and found.ipv4_mapped is not None else address


def connection_slots(settings: ApiSettings) -> Slots:
    """As many as the settings say, but no more than this process may open files for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.connections_max * FILES_EACH
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    total_max = settings.connections_max
    if soft != resource.RLIM_INFINITY and soft < needed:
        total_max = max(1, soft // FILES_EACH)
        _log.warning("fewer_connections_than_set", connections_max=settings.connections_max, most=total_max, open_files_limit=soft)
    return Slots("connections", total_max, settings.connections_per_address or max(1, total_max // 2))


def request_slots(settings: ApiSettings) -> Slots:
    """Requests under way by the clients that proxies name: each has as many as it could have connections of its own."""
    return Slots("requests", settings.connections_max, settings.connections_per_address or max(1, settings.connections_max // 2))
