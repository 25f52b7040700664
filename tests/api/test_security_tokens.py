"""Attacks on what proves who is calling, and what may be done: tokens forged, confused, replayed, outlived."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import jwt
import pytest

from refstore.configuration.settings import Settings
from refstore.core.ids import own_address
from refstore.core.safety import Safety
from refstore.core.signed_tokens import ISSUER
from refstore.errors import KVUnavailable
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.service import access_keys
from refstore_api import create_app
from refstore_api.auth import AUDIENCE as LOGIN
from refstore_api.auth import Authenticator
from refstore_api.signed_urls import AUDIENCE as SIGNED
from refstore_http.principals import KEY_SECONDS
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application
from tests.interrupted import seal
from tests.kit.clock import FakeClock

BACKING = "/repositories/alpha/branches/main/staging/backing"


class Attacked(NamedTuple):
    """Two repositories, and what the service signs with: an attacker has none of it, the tests forge with all of it."""

    asgi: Application
    kid: str
    key: bytes

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.asgi(method, path, **options)

    def bearer(self, token: str) -> httpx.Response:
        return self("GET", "/repositories", headers={"Authorization": f"Bearer {token}"}, auth=None)

    def login(self, key_id: str = KEY_ID, secret: str = SECRET) -> str:
        answered = self("POST", "/auth/login", json={"access_key_id": key_id, "secret_access_key": secret}, auth=None)
        assert answered.status_code == 200
        return answered.json()["token"]

    def issue(self, path: str = "p", **parameters: Any) -> dict[str, Any]:
        found: dict[str, Any] = self("GET", BACKING, params={"path": path, **parameters}).json()
        return found

    def link(self, token: str, path: str = "p", *, where: str = BACKING, **more: Any) -> httpx.Response:
        body = {"staging": {"token": token, **more}, "checksum": "c", "size_bytes": 4}
        return self("PUT", where, params={"path": path}, json=body)

    def write(self, issued: dict[str, Any]) -> None:
        """As somebody with the store's own credentials does."""
        address = "data/" + issued["physical_address"].partition("?")[0].partition("/data/")[2]
        self.asgi.lake.repository("alpha").context.objects.put(own_address(address), b"body")

    def forged(
        self, like: str, *, key: bytes | None = None, algorithm: str = "HS256", kid: str | None = None, **claims: Any
    ) -> str:
        """A token with the claims of another, changed."""
        payload = jwt.decode(like, options={"verify_signature": False})
        payload |= claims
        payload = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(
            payload, self.key if key is None else key, algorithm=algorithm, headers={"kid": kid or self.kid}
        )


@pytest.fixture
def attacked(asgi: Application) -> Attacked:
    asgi.lake.create_repository("alpha")
    asgi.lake.create_repository("beta")
    (key,) = asgi.lake.current_signing_keys()
    return Attacked(asgi, key.kid, key.secret)


def _text(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(token: str, algorithm: str) -> str:
    head, payload, signature = token.split(".")
    del head
    return f"{_text({'alg': algorithm, 'typ': 'JWT'})}.{payload}.{signature if algorithm == 'HS256' else ''}"


FORGERIES: dict[str, Callable[[Attacked, str], str]] = {
    "alg none": lambda _, like: unsigned(like, "none"),
    "alg None": lambda _, like: unsigned(like, "None"),
    "alg none, with the right key id": lambda at, like: (
        f"{_text({'alg': 'none', 'kid': at.kid, 'typ': 'JWT'})}.{like.split('.')[1]}."
    ),
    "no key id": lambda _, like: unsigned(like, "HS256"),
    "another key": lambda at, like: at.forged(like, key=b"x" * 32),
    "an empty key": lambda at, like: at.forged(like, key=b"\0" * 32),
    "an unknown key id": lambda at, like: at.forged(like, kid="other"),
    "a key id that is a path": lambda at, like: at.forged(like, kid="../../dev/null"),
    "HS512 with the right key": lambda at, like: at.forged(like, algorithm="HS512"),
    "HS384 with the right key": lambda at, like: at.forged(like, algorithm="HS384"),
    "RS256 in the head, signed as HS256": lambda at, like: (
        f"{_text({'alg': 'RS256', 'kid': at.kid, 'typ': 'JWT'})}.{like.partition('.')[2]}"
    ),
    "another issuer": lambda at, like: at.forged(like, iss="somebody"),
    "no issuer": lambda at, like: at.forged(like, iss=None),
    "another audience": lambda at, like: at.forged(like, aud="else"),
    "no audience": lambda at, like: at.forged(like, aud=None),
    "no expiry": lambda at, like: at.forged(like, exp=None),
    "an expiry that is no number": lambda at, like: at.forged(like, exp="tomorrow"),
    "claims changed behind the signature": lambda _, like: (
        f"{like.split('.')[0]}.{_text(jwt.decode(like, options={'verify_signature': False}) | {'extra': 1})}"
        f".{like.split('.')[2]}"
    ),
    "a signature cut short": lambda _, like: like[:-4],
    "a signature in another spelling": lambda _, like: (
        like[:-1] + chr(ord(like[-1]) + 1)
    ),  # its last two bits are spare
    "not a token": lambda _at, _like: "a.b.c",
    "a long token": lambda _, like: like + "A" * 30_000,
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_login_token_is_refused(attacked: Attacked, how: str) -> None:
    token = attacked.login()
    assert attacked.bearer(token).status_code == 200
    assert attacked.bearer(FORGERIES[how](attacked, token)).status_code == 401


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_link_token_is_refused(attacked: Attacked, how: str) -> None:
    issued = attacked.issue()
    attacked.write(issued)
    refused = attacked.link(FORGERIES[how](attacked, issued["token"]))
    assert (refused.status_code, refused.json()["code"]) in [(400, "invalid_token"), (400, "invalid")]
    assert attacked.link(issued["token"]).status_code == 200


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_signed_url_is_refused(attacked: Attacked, how: str) -> None:
    url = attacked.issue(presign=True)["presigned_url"]
    base, _, token = url.rpartition("/")
    refused = attacked("PUT", f"{base}/{FORGERIES[how](attacked, token)}", content=b"body", auth=None)
    assert refused.status_code in (400, 404)  # 404: what is no path segment is no route
    assert attacked("PUT", url, content=b"body", auth=None).status_code == 200


@pytest.mark.parametrize("kind", ["login", "link", "url"])
def test_a_token_of_one_kind_is_not_taken_for_another(attacked: Attacked, kind: str) -> None:
    """All three are signed with one key: the audience keeps them apart."""
    issued = attacked.issue(presign=True)
    attacked.write(issued)
    tokens = {"login": attacked.login(), "link": issued["token"], "url": issued["presigned_url"].rpartition("/")[2]}
    accepted = {
        "login": attacked.bearer(tokens[kind]).status_code == 200,
        "url": attacked("PUT", f"/signed/{tokens[kind]}", content=b"body", auth=None).status_code in (200, 409),
        "link": attacked.link(tokens[kind]).status_code == 200,
    }
    assert accepted == {name: name == kind for name in accepted}


def test_a_token_whose_audience_is_a_list_of_all_kinds_cannot_be_had(attacked: Attacked) -> None:
    """No token that the service signs names more than one."""
    issued = attacked.issue(presign=True)
    audiences = [
        jwt.decode(token, options={"verify_signature": False})["aud"]
        for token in (attacked.login(), issued["token"], issued["presigned_url"].rpartition("/")[2])
    ]
    assert audiences == [LOGIN, attacked.asgi.lake.repository("alpha").record.id, SIGNED]


def test_a_kv_that_does_not_answer_is_not_taken_for_a_wrong_token(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = attacked.login()
    attacked.write(attacked.issue())
    url = attacked.issue(presign=True)["presigned_url"].partition("/api/v1")[2]

    def fail(_lake: Lake) -> None:
        raise KVUnavailable("planted: nobody answered")

    monkeypatch.setattr(Lake, "current_signing_keys", fail)
    for answered in (attacked.bearer(token), attacked("PUT", url, content=b"1234", auth=None)):
        assert (answered.status_code, answered.json()["code"]) == (503, "unavailable")


def test_an_expired_login_token_is_refused(attacked: Attacked) -> None:
    token = attacked.login()
    attacked.asgi.clock.advance(86_400)
    assert attacked.bearer(token).json()["message"].startswith("the bearer token has expired")


def test_an_expired_link_is_refused_and_its_address_reaped(attacked: Attacked) -> None:
    issued = attacked.issue()
    attacked.write(issued)
    attacked.asgi.clock.advance(attacked.asgi.lake.safety.issue_seconds + 1)
    assert attacked.link(issued["token"]).json()["code"] == "invalid_token"
    attacked.asgi.clock.advance(86_400)
    attacked.asgi.reap()
    assert attacked.asgi.blobs("alpha") == []


def test_an_expired_signed_url_is_refused(attacked: Attacked) -> None:
    url = attacked.issue(presign=True)["presigned_url"]
    attacked.asgi.clock.advance(attacked.asgi.lake.safety.issue_seconds + 1)
    assert attacked("PUT", url, content=b"body", auth=None).json()["code"] == "invalid_token"


def test_a_replayed_link_is_refused(attacked: Attacked) -> None:
    issued = attacked.issue()
    attacked.write(issued)
    assert attacked.link(issued["token"]).status_code == 200
    again = attacked.link(issued["token"])
    assert (again.status_code, again.json()["code"]) == (409, "already_linked")


@pytest.mark.parametrize(
    "since", ["overwritten", "overwritten in a commit", "deleted", "deleted in a commit", "committed", "reaped"]
)
def test_a_link_replayed_after_its_object_moved_on_is_refused(attacked: Attacked, since: str) -> None:
    issued = attacked.issue()
    attacked.write(issued)
    assert attacked.link(issued["token"]).status_code == 200
    repo = attacked.asgi.lake.repository("alpha")
    if since.endswith("in a commit"):
        seal(repo)
    if since.startswith("overwritten"):
        repo.upload("main", "p", b"newer")
    elif since == "committed":
        repo.commit("main", "c")
    else:
        repo.delete("main", "p")
    if since in ("committed", "reaped"):
        attacked.asgi.clock.advance(3601)  # less than the token's life, more than the grace window
        attacked.asgi.reap()
    assert attacked.link(issued["token"]).status_code in (404, 409)
    shown = {"overwritten": b"newer", "committed": b"body"}.get(since.partition(" ")[0])
    assert [repo.read("main", listed.path) for listed in repo.list("main")] == ([shown] if shown is not None else [])


def test_a_replayed_link_among_others_fails_nobody_elses(attacked: Attacked) -> None:
    """Requests that come together are made as one call: a replay in it must not take the others with it."""
    issued = [attacked.issue(f"p{number}") for number in range(8)]
    for each in issued:
        attacked.write(each)
    assert attacked.link(issued[0]["token"], "p0").status_code == 200

    async def together() -> list[int]:
        import asyncio

        def ask(number: int) -> Any:
            body = {"staging": {"token": issued[number]["token"]}, "checksum": "c", "size_bytes": 4}
            return attacked.asgi.http.put(BACKING, params={"path": f"p{number}"}, json=body)

        return [answered.status_code for answered in await asyncio.gather(*map(ask, range(8)))]

    assert attacked.asgi.runner.run(together()) == [409] + [200] * 7


def test_a_signed_url_writes_once(attacked: Attacked) -> None:
    url = attacked.issue(presign=True)["presigned_url"]
    assert attacked("PUT", url, content=b"body", auth=None).status_code == 200
    assert attacked("PUT", url, content=b"evil", auth=None).status_code == 409


@pytest.mark.parametrize("reaped", [False, True])
def test_a_signed_url_does_not_write_what_was_linked_and_let_go(attacked: Attacked, *, reaped: bool) -> None:
    issued = attacked.issue(presign=True)
    url = issued["presigned_url"]
    assert attacked("PUT", url, content=b"body", auth=None).status_code == 200
    assert attacked.link(issued["token"]).status_code == 200
    attacked.asgi.lake.repository("alpha").delete("main", "p")
    if reaped:
        attacked.asgi.clock.advance(3601)
        attacked.asgi.reap()
    assert attacked("PUT", url, content=b"evil", auth=None).status_code == 409
    assert attacked.asgi.blobs("alpha") == ([] if reaped else [b"body"])


def test_a_signed_url_to_write_does_not_read_and_the_other_way_round(attacked: Attacked) -> None:
    repo = attacked.asgi.lake.repository("alpha")
    repo.upload("main", "q", b"secret")
    write = attacked.issue(presign=True)["presigned_url"]
    read = attacked("GET", "/repositories/alpha/refs/main/objects", params={"path": "q", "presign": True}).headers[
        "location"
    ]
    assert attacked("GET", write, auth=None).status_code == 400
    assert attacked("PUT", read, content=b"evil", auth=None).status_code == 400
    assert attacked("GET", read, auth=None).content == b"secret"


@pytest.mark.parametrize(
    ("where", "path"),
    [
        (BACKING, "q"),
        (BACKING, "p/"),
        (BACKING.replace("main", "side"), "p"),
        (BACKING.replace("alpha", "beta"), "p"),
    ],
    ids=["another path", "another path by a slash", "another branch", "another repository"],
)
def test_a_link_token_used_elsewhere_is_refused(attacked: Attacked, where: str, path: str) -> None:
    attacked.asgi.lake.repository("alpha").create_branch("side", source="main")
    issued = attacked.issue()
    attacked.write(issued)
    assert attacked.link(issued["token"], path, where=where).json()["code"] == "invalid_token"


def test_a_link_token_with_another_address_is_refused(attacked: Attacked) -> None:
    mine, theirs = attacked.issue("p"), attacked.issue("q")
    attacked.write(mine)
    attacked.write(theirs)
    bare = theirs["physical_address"].partition("?")[0]
    assert attacked.link(mine["token"], physical_address=bare).json()["code"] == "invalid_token"


def test_a_link_of_what_was_never_uploaded_is_refused_and_may_be_done_later(attacked: Attacked) -> None:
    issued = attacked.issue()
    assert attacked.link(issued["token"]).status_code == 404
    attacked.write(issued)
    assert attacked.link(issued["token"]).status_code == 200


def test_a_link_token_of_a_repository_that_was_made_again_under_its_name_is_refused(attacked: Attacked) -> None:
    issued = attacked.issue()
    attacked("DELETE", "/repositories/alpha")
    for _ in range(4):
        attacked.asgi.clock.advance(2 * 86_400)
        attacked.asgi.reap()
    made = attacked("POST", "/repositories", json={"name": "alpha"})
    assert made.status_code == 201, made.text
    fresh = attacked.forged(issued["token"], exp=attacked.asgi.clock.now_ms() // 1000 + 60)
    assert attacked.link(fresh).json()["code"] == "invalid_token"


# ---- keys


class TestRevoked:
    @pytest.fixture
    def key(self, attacked: Attacked) -> access_keys.NewKey:
        return access_keys.create_key(attacked.asgi.lake, access_keys.Role.WRITER)

    @pytest.fixture
    def asgi(self) -> Iterator[Application]:
        with application(constants={"api.auth.KEY_SECONDS": 0}) as found:
            yield found

    def test_a_revoked_key_is_refused(self, attacked: Attacked, key: access_keys.NewKey) -> None:
        assert attacked("GET", "/user", auth=(key.key.id, key.secret)).status_code == 200
        access_keys.revoke_key(attacked.asgi.lake, key.key.id)
        assert attacked("GET", "/user", auth=(key.key.id, key.secret)).status_code == 401

    def test_a_revoked_keys_token_is_refused(self, attacked: Attacked, key: access_keys.NewKey) -> None:
        token = attacked.login(key.key.id, key.secret)
        assert attacked.bearer(token).status_code == 200
        access_keys.revoke_key(attacked.asgi.lake, key.key.id)
        assert attacked.bearer(token).status_code == 401

    def test_a_token_does_not_outlive_its_key_into_another_of_the_same_id(self, attacked: Attacked) -> None:
        """As when the operator's secret is changed in the environment because it became known."""
        token = attacked.login()
        access_keys.ensure_key(attacked.asgi.lake, KEY_ID, "the-new-secret-of-the-operator")
        assert attacked.bearer(token).status_code == 401
        assert attacked("GET", "/user").status_code == 401
        assert attacked("GET", "/user", auth=(KEY_ID, "the-new-secret-of-the-operator")).status_code == 200

    def test_a_key_whose_role_is_lowered_loses_what_its_token_could_do(
        self, attacked: Attacked, key: access_keys.NewKey
    ) -> None:
        token = attacked.login(key.key.id, key.secret)
        kv = attacked.asgi.lake.kv
        from msgspec.structs import replace

        from refstore.records import keys
        from refstore.records.encoding import decode, encode
        from refstore.records.lake_records import AccessKeyRecord

        place = keys.access_key(key.key.id)
        record = decode(kv.get(place), AccessKeyRecord)
        kv.set(place, encode(replace(record, role=1)))
        headers = {"Authorization": f"Bearer {token}"}
        assert (
            attacked(
                "POST", "/repositories/alpha/branches", json={"name": "b", "source": "main"}, headers=headers, auth=None
            ).status_code
            == 403
        )


def test_a_revoked_key_is_good_no_longer_than_key_seconds(attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("refstore_api.auth.time.monotonic", lambda: now)
    assert attacked("GET", "/user").status_code == 200
    access_keys.revoke_key(attacked.asgi.lake, KEY_ID)
    now += KEY_SECONDS - 0.1
    assert attacked("GET", "/user").status_code == 200
    now += 0.2
    assert attacked("GET", "/user").status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic ",
        "Basic !!!",
        "Basic \xe9\xe9\xe9",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
        "Basic " + base64.b64encode(f"{KEY_ID}:".encode()).decode(),
        "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}x".encode()).decode(),
        "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET[:-1]}".encode()).decode(),
        "Basic " + base64.b64encode(f"{KEY_ID}\0:{SECRET}".encode()).decode(),
        "Basic " + base64.b64encode(f"{KEY_ID}\n:{SECRET}".encode()).decode(),
        "Basic " + base64.b64encode(f"../{KEY_ID}:{SECRET}".encode()).decode(),
        "Basic " + base64.b64encode(f"{'A' * 5000}:{SECRET}".encode()).decode(),
        "Bearer",
        "Bearer \xe9.\xe9.\xe9",
        "Digest username=x",
        "Negotiate abc",
        "\x00",
    ],
)
def test_credentials_that_are_none_are_refused(attacked: Attacked, header: str) -> None:
    refused = attacked("GET", "/repositories", headers=[(b"authorization", header.encode("latin-1"))], auth=None)
    assert refused.status_code == 401
    assert refused.json()["code"] == "unauthenticated"


def test_what_is_wrong_with_a_pair_is_not_said(attacked: Attacked) -> None:
    """Whether a key exists is nothing that guessing tells."""
    wrong_secret = attacked("GET", "/user", auth=(KEY_ID, "x" * 30))
    wrong_id = attacked("GET", "/user", auth=("AKIANOBODY", "x" * 30))
    assert wrong_secret.json() == wrong_id.json()


def test_every_token_has_an_issuer_and_ends(attacked: Attacked) -> None:
    issued = attacked.issue(presign=True)
    for token in (attacked.login(), issued["token"], issued["presigned_url"].rpartition("/")[2]):
        claims = jwt.decode(token, options={"verify_signature": False})
        assert claims["iss"] == ISSUER
        assert claims["exp"] > attacked.asgi.clock.now_ms() // 1000
        assert SECRET not in json.dumps(claims)


def test_a_token_signed_with_the_key_before_a_rotation_goes_on() -> None:
    first, second = "one:" + "1" * 32, "two:" + "2" * 32
    clock = FakeClock()
    kv = MemoryKV()
    access_keys.create_key(
        Lake(kv, "memory://rotating", clock=clock), access_keys.Role.OPERATOR, id=KEY_ID, secret=SECRET
    )

    def using(*signing: str) -> Any:

        settings = Settings(data=None, kv="memory://", objects="memory://rotating", signing_keys=signing)
        lake = Lake(kv, "memory://rotating", clock=clock, safety=Safety(), signing_keys=settings.parsed_signing_keys)
        return create_app(settings, lake=lake).state.authenticator

    token, _ = asyncio.run(using(first).login(KEY_ID, SECRET, "127.0.0.1"))

    def look_up(found: Authenticator) -> str:
        return asyncio.run(found.principal(f"Bearer {token}", "127.0.0.1")).key_id

    assert look_up(using(second, first)) == KEY_ID
    with pytest.raises(Exception, match="not signed with a key in use"):
        look_up(using(second))
