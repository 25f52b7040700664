"""Sign URLs that read or write one object without credentials for a while. The store signs them if it can (S3),
otherwise the service.

The service's URLs carry a JWT that names the repository, the object and the action. Its audience is its own, so neither
a login's token nor an issued address's passes for one.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from fastapi import Request

from refstore.context import Context
from refstore.core import signed_tokens
from refstore.core.ids import Address, own_address
from refstore.core.signed_tokens import UnknownSigningKey
from refstore.errors import Invalid, InvalidToken
from refstore_http.http_errors import hide_faults
from refstore_http.service import Service

AUDIENCE: Final = "refstore-signed"
PATH: Final = "/api/v1/signed/"

SignedAction = Literal["get", "put"]


class SignedUrlGrant(NamedTuple):
    repository: str
    address: Address
    action: SignedAction
    size_bytes: int
    """Of the object that is read."""


class SignedUrl(NamedTuple):
    url: str
    expires_seconds: int
    """When the URL expires, in seconds since the epoch."""


def sign_url(
    request: Request,
    ctx: Context,
    address: Address,
    act: SignedAction,
    *,
    seconds: int,
    size_bytes: int = 0,
    if_absent: bool = False,
) -> SignedUrl:
    """Sign a URL for one object. `size_bytes`: of an object that is read. `if_absent`: one that writes only where
    nothing is. Those of the service do anyway.
    """
    expires = ctx.clock.now_ms() // 1000 + seconds
    try:
        url = (
            ctx.objects.presign_get(address, expires_seconds=seconds)
            if act == "get"
            else ctx.objects.presign_put(address, expires_seconds=seconds, if_absent=if_absent)
        )
        return SignedUrl(url, expires)
    except Invalid:
        pass  # the store cannot sign URLs, so the service answers them
    claims = {
        "aud": AUDIENCE,
        "exp": expires,
        "sub": ctx.name,
        "repo": ctx.repo,
        "address": address,
        "act": act,
        "size": size_bytes,
    }
    service: Service = request.app.state.service
    token = signed_tokens.sign(claims, service.lake.current_signing_keys()[0])
    base = service.settings.public_url.rstrip("/") or str(request.base_url).rstrip("/")
    return SignedUrl(f"{base}{PATH}{token}", expires)


def verify_token(service: Service, token: str, act: SignedAction) -> tuple[SignedUrlGrant, Context]:
    """Verify the token of a signed URL. Raises InvalidToken, RepositoryNotFound."""
    with hide_faults():
        signing = service.lake.current_signing_keys()  # it may ask the KV, whose failure says nothing about the token
    try:
        claims = signed_tokens.verify(token, signing, audience=AUDIENCE, required=["sub"])
        grant = SignedUrlGrant(
            str(claims["sub"]), own_address(str(claims["address"])), claims["act"], int(claims["size"])
        )
        expires, repo_id = int(claims["exp"]), str(claims["repo"])
    except UnknownSigningKey as error:
        raise InvalidToken("the URL was not signed with a key in use here; get a new one") from error
    except Exception as error:
        # a hostile token can make the parser raise anything; the answer is always the same
        raise InvalidToken("the signed URL is not valid; get a new one") from error
    if expires * 1000 <= service.lake.clock.now_ms():
        raise InvalidToken("the signed URL has expired; get a new one")
    ctx = service.lake.repository(grant.repository).context
    if grant.action != act or ctx.repo != repo_id:
        raise InvalidToken("the signed URL is for something else; get a new one")
    return grant, ctx
