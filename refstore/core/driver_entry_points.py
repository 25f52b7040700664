"""Drivers that other packages bring: an entry point's group names the interface, its name is the URL scheme.

A driver runs with everything that the process may do, as any installed package does. A scheme that is built in always
opens the built-in driver, so the installed packages are looked through for other schemes only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from refstore.errors import InvalidSettings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KV_DRIVERS: Final = "refstore.kv"
OBJECT_DRIVERS: Final = "refstore.objects"


def load_opener(group: str, scheme: str, built_in: Collection[str], refusal: str) -> object:
    """Return what the entry point `scheme` of `group` names. Raises InvalidSettings, which begins with `refusal` where
    no package has such an entry point.
    """
    from importlib.metadata import entry_points  # imports a parser of e-mails, which few processes need

    installed = entry_points(group=group)
    named = [entry for entry in installed if entry.name.lower() == scheme]
    if not named:
        ending = ":" if group == KV_DRIVERS else "://"
        known = [*built_in, *sorted({name.lower() for name in installed.names} - set(built_in))]
        raise InvalidSettings(
            f"{refusal}; use one of {', '.join(each + ending for each in known)}, or install a package that has "
            f"an entry point for this scheme in the group {group!r}{_installed_drivers(installed, built_in)}"
        )
    if len({entry.value for entry in named}) > 1:
        raise InvalidSettings(
            f"several packages bring a driver for {scheme}: ({', '.join(map(_distribution_of, named))}); uninstall "
            "all but one"
        )
    try:
        return named[0].load()
    except (ImportError, AttributeError) as error:
        raise InvalidSettings(
            f"the driver for {scheme}: cannot be loaded from {_distribution_of(named[0])} ({error}); install what it "
            "needs, or correct its entry point"
        ) from error


def _installed_drivers(installed: Collection[EntryPoint], built_in: Collection[str]) -> str:
    clashes = sorted(_distribution_of(entry) for entry in installed if entry.name.lower() in built_in)
    return f"; not used, because these schemes are built in: {', '.join(clashes)}" if clashes else ""


def _distribution_of(entry: EntryPoint) -> str:
    return f"{entry.name} = {entry.value} of {entry.dist.name if entry.dist else 'an unnamed package'}"
