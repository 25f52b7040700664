"""Who is calling: Basic auth with an access key, as lakeFS's clients send it, or the bearer token that a login answered.

What a request presented is looked up once and then known for `key_seconds` (`known_callers.py`); after that the key's record is read again.
Wrong secrets are counted, and who sends too many waits (`guessing.py`); not who
was let in with the same before. A token names its key, and carries a mark of the secret that it was bought with: it is good only as
long as that very secret is, not for a key that was made again under the same id, and until an operator ends the key's tokens.
Why a key opens nothing any more hears only who proved its secret.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import jwt
from fastapi import Depends, Request

from api.errors import Forbidden, TooManyGuesses, Unauthenticated
from api.guessing import Caller, Guesses
from api.key_uses import KeyUses
from api.known_callers import Credential, KnownCallers, Secret, Token
from api.middleware import address_of
from api.service import Service
from refstore import access
from refstore.access import Role
from refstore.issuance import ALGORITHM, ISSUER, SigningKey
from refstore.records import AccessKeyRecord, SecretHash

AUDIENCE: Final = "refstore-api"
"""Not a repository's id, which is the audience of issued addresses: neither token is good for the other."""


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
        self._known = KnownCallers(service.settings.key_seconds)
        self._guesses = Guesses(service.lake.clock, service.settings.wrong_secrets_max)
        self._uses = KeyUses(service.lake)

    async def principal(self, header: str | None, address: str) -> Principal:
        """Raises Unauthenticated, TooManyGuesses."""
        credential = credential_of(header)
        known, was_right = self._known.get(credential)
        if known is not None:
            return known
        try:
            principal = await self._service.run(lambda: self._look_up(credential, address, was_right=was_right))
        except (Unauthenticated, TooManyGuesses):
            self._known.forget(credential)
            raise
        self._known.add(credential, principal)
        return principal

    async def login(self, key_id: str, secret: str, address: str) -> tuple[str, int]:
        """(bearer token, when it expires in seconds since the epoch). Raises Unauthenticated, TooManyGuesses."""
        credential = Secret(key_id, secret)
        _, was_right = self._known.get(credential)
        try:
            principal, token, expires = await self._service.run(lambda: self._log_in(key_id, secret, address, was_right=was_right))
        except (Unauthenticated, TooManyGuesses):
            self._known.forget(credential)
            raise
        self._known.add(credential, principal)
        return token, expires

    def _log_in(self, key_id: str, secret: str, address: str, *, was_right: bool) -> tuple[Principal, str, int]:
        record, proven = self._by_secret(Caller(key_id, address), secret, was_right=was_right)
        principal = self._let_in(key_id, record, proven)
        now = self._service.lake.clock.now_ms() // 1000
        ends = [at_ms // 1000 for at_ms in (record.expires_ms, proven.ends_ms) if at_ms]
        expires = min([now + self._service.settings.login_seconds, *ends])
        signing = self._keys()[0]
        mark = access.mark_token(record, proven)
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": key_id, "iat": now, "exp": expires, "key": mark}
        token = jwt.encode(claims, signing.secret, algorithm=ALGORITHM, headers={"kid": signing.kid})
        return principal, token, expires

    def _look_up(self, credential: Credential, address: str, *, was_right: bool) -> Principal:
        if isinstance(credential, Token):
            return self._by_token(credential.text)
        record, proven = self._by_secret(Caller(credential.key_id, address), credential.secret, was_right=was_right)
        return self._let_in(credential.key_id, record, proven)

    def _let_in(self, key_id: str, record: AccessKeyRecord, proven: SecretHash) -> Principal:
        """Return who has proven this secret, or a token bought with it. Raises Unauthenticated where it opens nothing any more."""
        refusal = access.refusal(key_id, record, proven, self._service.lake.clock.now_ms())
        if refusal:
            raise Unauthenticated(refusal)
        self._uses.note(key_id, record.created_ms)
        return Principal(key_id, Role(record.role), record.repositories, record.created_ms)

    def _by_secret(self, caller: Caller, secret: str, *, was_right: bool) -> tuple[AccessKeyRecord, SecretHash]:
        """Return the key and which of its secrets it is, ended or not. Raises Unauthenticated, TooManyGuesses."""
        if not was_right:
            self._guesses.check(caller)
        found = access.find(self._service.lake.kv, caller.key_id)
        proven = access.find_secret(found or _NOBODY, secret)  # compared also where there is no key: both take as long
        if found is None or proven is None:
            self._guesses.wrong(caller)
            raise Unauthenticated("no such access key, or not its secret; list the keys with: refstore keys list")
        return found, proven

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
            subject, expires, mark = str(claims["sub"]), int(claims["exp"]), str(claims["key"])
        except Unauthenticated:
            raise
        except Exception as error:
            # whatever a hostile token makes the parser say, the answer is one and the same
            raise Unauthenticated("the bearer token is not valid; log in again") from error
        if expires * 1000 <= self._service.lake.clock.now_ms():
            raise Unauthenticated("the bearer token has expired; log in again")
        found = access.find(self._service.lake.kv, subject)
        proven = access.find_token_secret(found, mark) if found is not None else None
        if found is None or proven is None:
            raise Unauthenticated("the token was ended, or its access key revoked; log in again, or ask an operator for another key")
        return self._let_in(subject, found, proven)

    def _keys(self) -> Sequence[SigningKey]:
        return self._service.lake.signing()


def needs(role: Role) -> Any:
    """The dependency of a route that needs the role, in the repository that its path names. (`openapi.py` writes both schemes.)"""

    async def check(request: Request) -> Principal:
        principal = await authenticator_of(request).principal(request.headers.get("authorization"), address_of(request.scope))
        request.state.key_id = principal.key_id  # before it is refused, as the log says to whom that happened
        principal.check(role, request.path_params.get("repository"))
        return principal

    return Depends(check)


Reader = Annotated[Principal, needs(Role.READER)]
Writer = Annotated[Principal, needs(Role.WRITER)]
Operator = Annotated[Principal, needs(Role.OPERATOR)]


def authenticator_of(request: Request) -> Authenticator:
    found: Authenticator = request.app.state.authenticator
    return found


def credential_of(header: str | None) -> Credential:
    """What an Authorization header presents. Raises Unauthenticated."""
    if not header:
        raise Unauthenticated("this needs an access key; send it by Basic auth, or log in and send the token")
    scheme, _, value = header.partition(" ")
    match scheme.lower():
        case "basic":
            try:
                key_id, colon, secret = base64.b64decode(value, validate=True).decode().partition(":")
            except ValueError:  # not base64, not UTF-8, not even ASCII
                key_id = colon = secret = ""
            if not colon:
                raise Unauthenticated("the Basic credentials are not id:secret in base64; check the client")
            return Secret(key_id, secret)
        case "bearer":
            return Token(value.strip())
        case _:
            raise Unauthenticated("the Authorization header is neither Basic nor Bearer; see /docs")


def claimed_key(header: str | None) -> str:
    """The access key that an Authorization header names, proven or not; '' where it names none that could be one. For the log."""
    try:
        credential = credential_of(header)
        if isinstance(credential, Secret):
            found = credential.key_id
        else:
            found = str(jwt.decode(credential.text, options={"verify_signature": False}).get("sub", ""))
    except Exception:  # noqa: BLE001  # whatever a hostile header makes the parser say, it names no key
        return ""
    return found if access.is_id(found) else ""


_NOBODY: Final = AccessKeyRecord(secrets.token_bytes(16), secrets.token_bytes(32), 0, 0)
