"""Find the driver of a URL scheme: a built-in one, or one that another package brings by an entry point. The entry
point's group names the interface, its name is the scheme.

A driver runs with everything that the process may do, as any installed package does. A scheme that is built in always
opens the built-in driver, so the installed packages are looked through for other schemes only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from refstore.errors import InvalidSettings, MissingExtra

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KV_DRIVERS: Final = "refstore.kv"
OBJECT_DRIVERS: Final = "refstore.objects"


class BuiltInDriver(NamedTuple):
    opener: str
    """`module:function`. The module is imported when a URL of its scheme is first opened."""
    extra: str = ""
    """The extra that installs the packages of the driver; '': it needs none."""


def find_opener(group: str, scheme: str, built_in: Mapping[str, BuiltInDriver], refusal: str) -> Any:
    """Return the function that opens a URL of the scheme. Raises MissingExtra; and InvalidSettings, which begins with
    `refusal` where no package has an entry point for the scheme.
    """
    driver = built_in.get(scheme)
    if driver is None:
        return _load_installed(group, scheme, built_in, refusal)
    module, _, name = driver.opener.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not driver.extra or (error.name or "").startswith("refstore"):
            raise
        what = f"a {scheme}:// KV" if group == KV_DRIVERS else f"{scheme}:// object stores"
        raise MissingExtra(driver.extra, what) from error


def _load_installed(group: str, scheme: str, built_in: Collection[str], refusal: str) -> object:
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
