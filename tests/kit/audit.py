"""An audit log that keeps nothing, for explorations: each of its writes would be one more step of every schedule."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from refstore.audit import Actor, AuditLog, EntryDraft


class NoAudit(AuditLog):
    def __init__(self) -> None:
        """It needs no stores."""

    @contextmanager
    def change(
        self,
        action: str,
        *,
        repository: str = "",
        target: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> Generator[EntryDraft, None, None]:
        del action, repository, target
        yield EntryDraft(before, after)

    @contextmanager
    def act(
        self,
        action: str,
        *,
        repository: str = "",
        target: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        actor: Actor | None = None,
        bounded_wait: bool = True,
    ) -> Generator[EntryDraft, None, None]:
        del action, repository, target, actor, bounded_wait
        yield EntryDraft(before, after)

    def write_waiting(self, *, limit: int = 0) -> int:
        del limit
        return 0
