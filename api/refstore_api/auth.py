"""Authenticate callers: Basic auth with an access key, as lakeFS's clients send it, or the bearer token of a login.

A credential is looked up once and then cached for `KEY_SECONDS`, so that not every request hashes a secret or reads a
key; after that the key's record is read again. The cache compares the parsed content of credentials, never the header's
spelling, and bounds the entries of each key. Otherwise the holder of one good token could spell it in thousands of
ways, and push out everybody else. Wrong secrets are counted, and a caller who sends too many has to wait
(`login_throttle.py`). A caller whose same credential was right before does not wait.

A token names its key, and carries a mark of the secret that bought it. It is valid only as long as that secret is. It
ends with its session, or when an operator ends the key's tokens, and it never opens a new key with the same id. Only a
caller who proved the secret learns why a key is refused.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Request

from refstore.core import signed_tokens
from refstore.core.signed_tokens import UnknownSigningKey
from refstore.core.signing_keys import SigningKey
from refstore.core.units import DAY_SECONDS
from refstore.kv.base import ABSENT, Key
from refstore.records import keys
from refstore.records.encoding import decode_optional
from refstore.records.lake_records import AccessKeyRecord, SecretHash
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_api.api_calls import ApiCall
from refstore_api.request_middleware import PRINCIPAL
from refstore_http.http_errors import TooManyWrongSecrets, Unauthenticated, hide_faults
from refstore_http.login_throttle import WRONG_SECRETS_MAX, LoginCaller, LoginThrottle
from refstore_http.principals import KEY_SECONDS, KeyLastUse, Principal
from refstore_http.request_pipeline import address_of, name_caller
from refstore_http.service import Service

OWNERS_MAX: Final = 4096
"""Keys that sent secrets, plus keys that sent tokens."""
SECRETS_MAX: Final = 2
TOKENS_MAX: Final = 64
"""Cached tokens of one key. Beyond that, the oldest token is verified again when it comes."""


class SecretCredential(NamedTuple):
    """The credential of Basic auth, and of a login."""

    key_id: str
    secret: str


class TokenCredential(NamedTuple):
    text: str


Credential = SecretCredential | TokenCredential


class CachedCaller(NamedTuple):
    principal: Principal
    valid_until: float
    """By the monotonic clock: after that the key is read again."""


class _CacheOwner(NamedTuple):
    """One key's secrets, or its tokens. They are cached apart, so that tokens never push out the secret."""

    key_id: str
    kind: type[Credential]


class CallerCache:
    """Cache authenticated callers; used by one thread only. It keeps a keyed hash of each secret, never the secret."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._own = secrets.token_bytes(32)
        self._known: OrderedDict[_CacheOwner, OrderedDict[bytes, CachedCaller]] = OrderedDict()
        """The least recently used first."""
        self._owners: dict[bytes, _CacheOwner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def count_owners(self) -> int:
        """Return how many keys have secrets here, plus how many have tokens."""
        return len(self._known)

    def get(self, credential: Credential) -> tuple[Principal | None, bool]:
        """Return the caller if the entry is still fresh, and whether the credential was right at its last check."""
        digest = self._digest(credential)
        owner = self._owners.get(digest)
        if owner is None:
            return None, False
        cached = self._known[owner][digest]
        return cached.principal if time.monotonic() < cached.valid_until else None, True

    def add(self, credential: Credential, principal: Principal) -> None:
        digest = self._digest(credential)
        owner = _CacheOwner(principal.key_id, type(credential))
        cached_callers = self._known.setdefault(owner, OrderedDict())
        cached_callers[digest] = CachedCaller(principal, time.monotonic() + self._seconds)
        self._owners[digest] = owner
        cached_callers.move_to_end(digest)
        self._known.move_to_end(owner)
        while len(cached_callers) > (SECRETS_MAX if owner.kind is SecretCredential else TOKENS_MAX):
            del self._owners[cached_callers.popitem(last=False)[0]]
        while len(self._known) > OWNERS_MAX:
            for digest in self._known.popitem(last=False)[1]:
                del self._owners[digest]

    def remove(self, credential: Credential) -> None:
        """Drop a credential that is no longer valid."""
        digest = self._digest(credential)
        owner = self._owners.pop(digest, None)
        if owner is not None:
            del self._known[owner][digest]
            if not self._known[owner]:
                del self._known[owner]

    def _digest(self, credential: Credential) -> bytes:
        text = (
            f"{len(credential.key_id)}:{credential.key_id}{credential.secret}"
            if isinstance(credential, SecretCredential)
            else credential.text
        )
        kind = b"secret" if isinstance(credential, SecretCredential) else b"token"
        return blake2b(text.encode(errors="surrogatepass"), key=self._own, person=kind).digest()


AUDIENCE: Final = "refstore-api"
"""Issued addresses have the repository's id as audience, so neither token passes for the other."""
LOGIN_SECONDS: Final = DAY_SECONDS
"""How long a bearer token is valid: a working day needs one login."""
_DIGITS: Final = 12
"""Of the time in the name of a session that has ended, so that names sort by it."""


class _SessionClaims(NamedTuple):
    """Of a login's token."""

    key_id: str
    token_id: str
    expires: int
    secret_mark: str


class Authenticator:
    """Authenticate the requests of one process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.caller_cache = CallerCache(KEY_SECONDS)
        self._guesses = LoginThrottle(service.lake.clock, WRONG_SECRETS_MAX)
        self._uses = KeyLastUse(service.lake)

    async def principal(self, header: str | None, address: str) -> Principal:
        """Return the principal that the Authorization header proves. Raises Unauthenticated, TooManyWrongSecrets."""
        credential = parse_credential(header)
        known, was_right = self.caller_cache.get(credential)
        if known is not None:
            return known
        with self._forget_refused(credential):
            principal = await self._service.run(lambda: self._look_up(credential, address, was_right=was_right))
        self.caller_cache.add(credential, principal)
        return principal

    async def login(self, key_id: str, secret: str, address: str) -> tuple[str, int]:
        """Return a bearer token, and when it expires in seconds since the epoch. Raises Unauthenticated,
        TooManyWrongSecrets.
        """
        credential = SecretCredential(key_id, secret)
        _, was_right = self.caller_cache.get(credential)
        with self._forget_refused(credential):
            principal, token, expires = await self._service.run(
                lambda: self._log_in(key_id, secret, address, was_right=was_right)
            )
        self.caller_cache.add(credential, principal)
        return token, expires

    async def end_session(self, token: str) -> None:
        """End the session of a valid token; the token is refused from now on. Raises Unauthenticated."""
        await self._service.run(lambda: self._end_session(token))
        self.caller_cache.remove(TokenCredential(token))

    @contextmanager
    def _forget_refused(self, credential: Credential) -> Generator[None, None, None]:
        """Drop a credential from the cache if it is refused in the block. Other faults are hidden."""
        try:
            with hide_faults():
                yield
        except (Unauthenticated, TooManyWrongSecrets):
            self.caller_cache.remove(credential)
            raise

    def _end_session(self, token: str) -> None:
        """End the session of the token, and remove the keys of the sessions whose tokens have expired."""
        claims, kv = self._verify_claims(token), self._service.lake.kv
        kv.set(_ended_session_key(claims), b"")
        now_seconds = self._service.lake.clock.now_ms() // 1000
        kv.delete_range(keys.ENDED_SESSIONS, f"{0:0{_DIGITS}d}/", f"{now_seconds:0{_DIGITS}d}/")

    def _log_in(self, key_id: str, secret: str, address: str, *, was_right: bool) -> tuple[Principal, str, int]:
        record, proven = self._verify_secret(LoginCaller(key_id, address), secret, was_right=was_right)
        principal = self._make_principal(key_id, record, proven)
        now = self._service.lake.clock.now_ms() // 1000
        ends = [at_ms // 1000 for at_ms in (record.expires_ms, proven.ends_ms) if at_ms]
        expires = min([now + LOGIN_SECONDS, *ends])
        mark = access_keys.make_token_mark(record, proven)
        token_id = secrets.token_hex(16)
        claims = {"aud": AUDIENCE, "sub": key_id, "jti": token_id, "iat": now, "exp": expires, "key": mark}
        token = signed_tokens.sign(claims, self._keys()[0])
        return principal, token, expires

    def _look_up(self, credential: Credential, address: str, *, was_right: bool) -> Principal:
        if isinstance(credential, TokenCredential):
            return self._verify_token(credential.text)
        record, proven = self._verify_secret(
            LoginCaller(credential.key_id, address), credential.secret, was_right=was_right
        )
        return self._make_principal(credential.key_id, record, proven)

    def _make_principal(self, key_id: str, record: AccessKeyRecord, proven: SecretHash) -> Principal:
        """Return the principal of a proven secret or token. Raises Unauthenticated if the key is no longer valid."""
        refusal = access_keys.refusal(key_id, record, proven, self._service.lake.clock.now_ms())
        if refusal:
            raise Unauthenticated(refusal)
        self._uses.record_use(key_id, record.created_ms)
        return Principal(key_id, Role(record.role), record.repositories, record.created_ms)

    def _verify_secret(
        self, caller: LoginCaller, secret: str, *, was_right: bool
    ) -> tuple[AccessKeyRecord, SecretHash]:
        """Return the key, and the one of its secrets that matches, ended or not. Raises Unauthenticated,
        TooManyWrongSecrets.
        """
        if not was_right:
            self._guesses.check(caller)
        record = access_keys.find_key(self._service.lake.kv, caller.key_id)
        # also compare when there is no such key, so that both cases take as long
        proven = access_keys.find_secret(record or _NOBODY, secret)
        if record is None or proven is None:
            self._guesses.record_wrong_secret(caller)
            raise Unauthenticated("no such access key, or not its secret; list the keys with: refstore keys list")
        return record, proven

    def _verify_token(self, token: str) -> Principal:
        claims = self._verify_claims(token)
        ended, raw = self._service.lake.kv.get_many([_ended_session_key(claims), keys.access_key(claims.key_id)])
        record = decode_optional(raw, AccessKeyRecord)
        proven = access_keys.find_token_secret(record, claims.secret_mark) if record is not None else None
        if record is None or proven is None or ended is not ABSENT:
            raise Unauthenticated(
                "the token was ended, or its access key revoked; log in again, or ask an operator for another key"
            )
        return self._make_principal(claims.key_id, record, proven)

    def _verify_claims(self, token: str) -> _SessionClaims:
        """Return what a token says that is ours and has not expired. Raises Unauthenticated."""
        signing = self._keys()  # it may ask the KV, whose failure says nothing about the token
        try:
            all_claims = signed_tokens.verify(token, signing, audience=AUDIENCE, required=["sub", "iat", "jti"])
            claims = _SessionClaims(
                str(all_claims["sub"]), str(all_claims["jti"]), int(all_claims["exp"]), str(all_claims["key"])
            )
        except UnknownSigningKey as error:
            raise Unauthenticated("the token was not signed with a key in use here; log in again") from error
        except Exception as error:
            # a hostile token can make the parser raise anything; the answer is always the same
            raise Unauthenticated("the bearer token is not valid; log in again") from error
        if claims.expires * 1000 <= self._service.lake.clock.now_ms():
            raise Unauthenticated("the bearer token has expired; log in again")
        return claims

    def _keys(self) -> Sequence[SigningKey]:
        return self._service.lake.current_signing_keys()


def _ended_session_key(claims: _SessionClaims) -> Key:
    """Return the key that says until its token expires that a session has ended, so that no process accepts the token
    any more. It is read with the access key, and as seldom: a process knows a caller for `KEY_SECONDS`.
    """
    return Key(keys.ENDED_SESSIONS, f"{claims.expires:0{_DIGITS}d}/{claims.token_id}")


def require_role(role: Role) -> Any:
    """Make the dependency of a route that needs the role in its path's repository. (`openapi.py` documents both
    schemes.)
    """

    async def check(request: Request) -> ApiCall:
        principal: Principal | None = getattr(request.state, PRINCIPAL, None)
        if principal is None:
            principal = await authenticator_of(request).principal(
                request.headers.get("authorization"), address_of(request.scope)
            )
        admit(request, principal, role)
        return ApiCall(request, principal)

    return Depends(check)


def admit(request: Request, principal: Principal, role: Role) -> None:
    """Name the caller to the logs, and check its role in the path's repository. Raises Forbidden."""
    # before the check, because the log names the key of a refused request too
    name_caller(request.scope, principal.key_id, getattr(request.scope.get("route"), "path", ""))
    principal.check(role, request.path_params.get("repository"))


Reader = Annotated[ApiCall, require_role(Role.READER)]
Writer = Annotated[ApiCall, require_role(Role.WRITER)]
Operator = Annotated[ApiCall, require_role(Role.OPERATOR)]


def authenticator_of(request: Request) -> Authenticator:
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator


def parse_credential(header: str | None) -> Credential:
    """Parse the credential in an Authorization header. Raises Unauthenticated."""
    if not header:
        raise Unauthenticated("this call needs an access key; send it by Basic auth, or log in and send the token")
    scheme, _, value = header.partition(" ")
    match scheme.lower():
        case "basic":
            try:
                key_id, colon, secret = base64.b64decode(value, validate=True).decode().partition(":")
            except ValueError:  # not base64, not UTF-8, not even ASCII
                key_id = colon = secret = ""
            if not colon:
                raise Unauthenticated("the Basic credentials are not id:secret in base64; check the client")
            return SecretCredential(key_id, secret)
        case "bearer":
            return TokenCredential(value.strip())
        case _:
            raise Unauthenticated("the Authorization header is neither Basic nor Bearer; see /docs")


def read_claimed_key(header: str | None) -> str:
    """Return the access key that an Authorization header names, for the log; '' if it names no valid id."""
    try:
        credential = parse_credential(header)
        if isinstance(credential, SecretCredential):
            key_id = credential.key_id
        else:
            key_id = str(signed_tokens.unverified_claims(credential.text).get("sub", ""))
    except Exception:  # noqa: BLE001  # a hostile header can make the parser raise anything; it names no key
        return ""
    return key_id if access_keys.is_id(key_id) else ""


_NOBODY: Final = AccessKeyRecord(secrets.token_bytes(16), secrets.token_bytes(32), 0, 0)
