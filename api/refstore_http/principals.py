"""Who makes a request, and what that caller may do."""

from __future__ import annotations

from typing import Final, NamedTuple

from refstore.service.access_keys import Role
from refstore_http.http_errors import Forbidden

KEY_SECONDS: Final = 5.0
"""How long an access key is cached, and so how long a revoked one stays valid at most."""


class Principal(NamedTuple):
    key_id: str
    role: Role
    repositories: tuple[str, ...]
    """The only repositories that the key may use; empty: all."""
    created_ms: int
    buckets: tuple[str, ...] = ()
    """The buckets that are a branch for this key, as `NAME=REPOSITORY:BRANCH`; of the S3 gateway only."""

    def check(self, role: Role, repository: str | None) -> None:
        """Check that the key has the role and may use the repository. Raises Forbidden."""
        if self.role < role:
            raise Forbidden(
                f"access key {self.key_id!r} has the role {self.role.name.lower()}, and this call needs "
                f"{role.name.lower()}; ask an operator for a key with that role"
            )
        elsewhere = role > Role.READER if repository is None else repository not in self.repositories
        if self.repositories and elsewhere:
            raise Forbidden(
                f"access key {self.key_id!r} may use {', '.join(self.repositories)} only; ask an operator for a key"
            )
