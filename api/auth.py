"""Who is calling: Basic auth with an access key, as lakeFS's clients send it, or the bearer token that a login answered.

What a request presented is looked up once and then known for `key_seconds`, under a keyed hash of it with a key of this process, so no
secret is kept; after that the key's record is read again. Wrong secrets are counted, and who sends too many waits (`guessing.py`); not who
was let in with the same before. A token names its key, and which making of it: it is good only as long as
that very key is, not for one that was made again under the same id.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, NamedTuple

import jwt
from fastapi import Depends, Request

from api.errors import Forbidden, TooManyGuesses, Unauthenticated
from api.guessing import Caller, Guesses
from api.middleware import address_of
from api.service import Service
from refstore import access
from refstore.access import Role
from refstore.issuance import ALGORITHM, ISSUER, SigningKey
from refstore.records import AccessKeyRecord

AUDIENCE: Final = "refstore-api"
"""Not a repository's id, which is the audience of issued addresses: neither token is good for the other."""
KNOWN_MAX: Final = 4096


class Principal(NamedTuple):
    key_id: str
    role: Role
    repositories: tuple[str, ...]
    """The only ones it may touch; empty: all."""
    created_ms: int

    def check(self, role: Role, repository: str | None) -> None:
        """Raises Forbidden."""
        if self.role < role:
            raise Forbidden(
                f"access key {self.key_id!r} is a {self.role.name.lower()}'s; this needs a {role.name.lower()}'s: ask an operator for one"
            )
        elsewhere = role > Role.READER if repository is None else repository not in self.repositories
        if self.repositories and elsewhere:
            raise Forbidden(f"access key {self.key_id!r} is for {', '.join(self.repositories)} only")


class Authenticator:
    """One per process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._seconds = service.settings.key_seconds
        self._own = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        self._guesses = Guesses(service.lake.clock, service.settings.wrong_secrets_max)

    async def principal(self, header: str | None, address: str) -> Principal:
        """Raises Unauthenticated, TooManyGuesses."""
        if not header:
            raise Unauthenticated("this needs an access key; send it by Basic auth, or log in and send the token")
        digest = self._digest(header)
        known = self._known.get(digest)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        try:
            principal = await self._service.run(lambda: self._look_up(header, address, was_right=known is not None))
        except (Unauthenticated, TooManyGuesses):
            self._known.pop(digest, None)
            raise
        self._know(digest, principal)
        return principal

    async def login(self, key_id: str, secret: str, address: str) -> tuple[str, int]:
        """(bearer token, when it expires in seconds since the epoch). Raises Unauthenticated, TooManyGuesses."""
        digest = self._digest(_basic(key_id, secret))
        was_right = digest in self._known
        try:
            principal, token, expires = await self._service.run(lambda: self._log_in(key_id, secret, address, was_right=was_right))
        except (Unauthenticated, TooManyGuesses):
            self._known.pop(digest, None)
            raise
        self._know(digest, principal)
        return token, expires

    def _know(self, digest: bytes, principal: Principal) -> None:
        self._known[digest] = principal, time.monotonic() + self._seconds
        self._known.move_to_end(digest)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _digest(self, header: str) -> bytes:
        return blake2b(header.encode(errors="surrogatepass"), key=self._own).digest()

    def _log_in(self, key_id: str, secret: str, address: str, *, was_right: bool) -> tuple[Principal, str, int]:
        principal, record = self._by_secret(Caller(key_id, address), secret, was_right=was_right)
        now = self._service.lake.clock.now_ms() // 1000
        expires = now + self._service.settings.login_seconds
        signing = self._keys()[0]
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": principal.key_id, "iat": now, "exp": expires, "key": _making(record)}
        return principal, jwt.encode(claims, signing.secret, algorithm=ALGORITHM, headers={"kid": signing.kid}), expires

    def _look_up(self, header: str, address: str, *, was_right: bool) -> Principal:
        scheme, _, value = header.partition(" ")
        match scheme.lower():
            case "basic":
                try:
                    key_id, colon, secret = base64.b64decode(value, validate=True).decode().partition(":")
                except ValueError:  # not base64, not UTF-8, not even ASCII
                    key_id = colon = secret = ""
                if not colon:
                    raise Unauthenticated("the Basic credentials are not id:secret in base64; check the client")
                return self._by_secret(Caller(key_id, address), secret, was_right=was_right)[0]
            case "bearer":
                return self._by_token(value.strip())
            case _:
                raise Unauthenticated("the Authorization header is neither Basic nor Bearer; see /docs")

    def _by_secret(self, caller: Caller, secret: str, *, was_right: bool) -> tuple[Principal, AccessKeyRecord]:
        key_id = caller.key_id
        if not was_right:
            self._guesses.check(caller)
        found = access.find(self._service.lake.kv, key_id)
        if not access.matches(found or _NOBODY, secret) or found is None:  # compared also where there is no key: both take as long
            self._guesses.wrong(caller)
            raise Unauthenticated("no such access key, or not its secret; list the keys with: refstore keys list")
        return Principal(key_id, Role(found.role), found.repositories, found.created_ms), found

    def _by_token(self, token: str) -> Principal:
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = next((key for key in self._keys() if key.kid == kid), None)
            if key is None:
                raise Unauthenticated("the token was not signed with a key in use here; log in again")
            claims = jwt.decode(
                token,
                key.secret,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                issuer=ISSUER,
                options={"require": ["iss", "aud", "sub", "iat", "exp"], "verify_exp": False, "verify_iat": False},
            )
            subject, expires, making = str(claims["sub"]), int(claims["exp"]), str(claims["key"])
        except Unauthenticated:
            raise
        except Exception as error:
            # whatever a hostile token makes the parser say, the answer is one and the same
            raise Unauthenticated("the bearer token is not valid; log in again") from error
        if expires * 1000 <= self._service.lake.clock.now_ms():
            raise Unauthenticated("the bearer token has expired; log in again")
        found = access.find(self._service.lake.kv, subject)
        if found is None or not hmac.compare_digest(_making(found).encode(), making.encode(errors="surrogatepass")):
            raise Unauthenticated("the access key of this token was revoked; ask an operator for another")
        return Principal(subject, Role(found.role), found.repositories, found.created_ms)

    def _keys(self) -> Sequence[SigningKey]:
        return self._service.lake.signing()


def needs(role: Role) -> Any:
    """The dependency of a route that needs the role, in the repository that its path names. (`openapi.py` writes both schemes.)"""

    async def check(request: Request) -> Principal:
        principal = await authenticator_of(request).principal(request.headers.get("authorization"), address_of(request.scope))
        principal.check(role, request.path_params.get("repository"))
        request.state.key_id = principal.key_id
        return principal

    return Depends(check)


Reader = Annotated[Principal, needs(Role.READER)]
Writer = Annotated[Principal, needs(Role.WRITER)]
Operator = Annotated[Principal, needs(Role.OPERATOR)]


def authenticator_of(request: Request) -> Authenticator:
    found: Authenticator = request.app.state.authenticator
    return found


def _basic(key_id: str, secret: str) -> str:
    """The header that says the same: who logs in and who sends the secret each time are let in alike."""
    return "Basic " + base64.b64encode(f"{key_id}:{secret}".encode(errors="surrogatepass")).decode()


def _making(record: AccessKeyRecord) -> str:
    """Tells apart two keys made under one id, and says nothing of either's secret."""
    return hmac.digest(record.salt, b"the making of this key", "sha256").hex()[:32]


_NOBODY: Final = AccessKeyRecord(secrets.token_bytes(16), secrets.token_bytes(32), 0, 0)
