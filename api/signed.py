"""URLs that read or write one object without credentials, for a while: the store's own where it has them (S3), else ours.

Ours carry a JWT that names the repository, the object and what may be done with it, with an audience of its own, so that neither a
login nor an issued address's token passes for one.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import jwt
from fastapi import Request

from api.service import Service
from refstore.context import Context
from refstore.errors import Invalid, InvalidToken
from refstore.ids import Address, own_address
from refstore.issuance import ALGORITHM, ISSUER

AUDIENCE: Final = "refstore-signed"
PATH: Final = "/api/v1/signed/"

Act = Literal["get", "put"]


class Grant(NamedTuple):
    repository: str
    address: Address
    act: Act


class Signed(NamedTuple):
    url: str
    expires_seconds: int
    """When it ends, in seconds since the epoch."""


def sign(service: Service, request: Request, ctx: Context, address: Address, act: Act, *, seconds: int) -> Signed:
    """A URL for one object."""
    expires = ctx.clock.now_ms() // 1000 + seconds
    try:
        presign = ctx.objects.presign_get if act == "get" else ctx.objects.presign_put
        return Signed(presign(address, expires_seconds=seconds), expires)
    except Invalid:
        pass  # the store has no such thing: the service answers itself
    key = service.lake.signing()[0]
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": expires, "sub": ctx.name, "repo": ctx.repo, "address": address, "act": act}
    token = jwt.encode(claims, key.secret, algorithm=ALGORITHM, headers={"kid": key.kid})
    base = service.settings.public_url.rstrip("/") or str(request.base_url).rstrip("/")
    return Signed(f"{base}{PATH}{token}", expires)


def verify(service: Service, token: str, act: Act) -> tuple[Grant, Context]:
    """Raises InvalidToken, RepositoryNotFound."""
    try:
        kid = jwt.get_unverified_header(token).get("kid")
        key = next((key for key in service.lake.signing() if key.kid == kid), None)
        if key is None:
            raise InvalidToken("the URL was not signed with a key in use here; get a new one")
        claims = jwt.decode(
            token,
            key.secret,
            algorithms=[ALGORITHM],
            audience=AUDIENCE,
            issuer=ISSUER,
            options={"require": ["iss", "aud", "exp", "sub"], "verify_exp": False},
        )
        grant = Grant(str(claims["sub"]), own_address(str(claims["address"])), claims["act"])
        expires, repo_id = int(claims["exp"]), str(claims["repo"])
    except InvalidToken:
        raise
    except Exception as error:
        # whatever a hostile token makes the parser say, the answer is one and the same
        raise InvalidToken("the signed URL is not valid; get a new one") from error
    if expires * 1000 <= service.lake.clock.now_ms():
        raise InvalidToken("the signed URL has expired; get a new one")
    ctx = service.lake.repository(grant.repository).context
    if grant.act != act or ctx.repo != repo_id:
        raise InvalidToken("the signed URL is for something else; get a new one")
    return grant, ctx
