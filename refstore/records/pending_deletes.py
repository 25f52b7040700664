"""What is deleted next: a line of a batch, as the journal has it."""

from __future__ import annotations

import msgspec

from refstore.core.ids import Address, Path, Token


class PendingDelete(msgspec.Struct, frozen=True, gc=False):
    """An address that is `deleting`: its blob is to be deleted now. Also a line of a `began` segment."""

    address: Address
    token: Token
    """The token of the reference whose removal emptied the list; '' if there never was one."""
    path: Path
    cause: str
    size_bytes: int
    """-1: unknown."""
