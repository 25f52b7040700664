"""Access keys: what is stored of them, and who passes."""

from __future__ import annotations

import hmac

import pytest

from refstore import access, keys
from refstore.access import Role
from refstore.errors import AlreadyExists, Invalid, InvalidName, NotFound
from refstore.kv.memory import MemoryKV
from refstore.records import AccessKeyRecord, decode
from refstore.testing.clock import FakeClock

SECRET = "a-secret-of-enough-characters"


@pytest.fixture
def kv() -> MemoryKV:
    return MemoryKV()


def create(kv: MemoryKV, role: Role = Role.WRITER, **options: object) -> access.NewKey:
    return access.create(kv, FakeClock(), role, **options)


def record(kv: MemoryKV, key_id: str) -> AccessKeyRecord:
    found = access.find(kv, key_id)
    assert found is not None
    return found


def test_a_key_passes_with_its_own_secret_only(kv: MemoryKV) -> None:
    one, other = create(kv), create(kv)
    assert access.matches(record(kv, one.key.id), one.secret)
    for wrong in (other.secret, one.secret[:-1], one.secret + "x", one.secret.lower(), "", "\ud800"):
        assert not access.matches(record(kv, one.key.id), wrong)


def test_a_secret_that_is_made_is_long_and_never_the_same(kv: MemoryKV) -> None:
    made = {create(kv).secret for _ in range(50)}
    assert len(made) == 50
    assert min(map(len, made)) >= 40


def test_the_secret_is_not_stored(kv: MemoryKV) -> None:
    made = create(kv, id="AKIA1", secret=SECRET)
    value = kv.get(keys.access_key("AKIA1"))
    assert isinstance(value, bytes)
    assert made.secret.encode() not in value


def test_equal_secrets_are_stored_differently(kv: MemoryKV) -> None:
    for key_id in ("one", "two"):
        create(kv, id=key_id, secret=SECRET)
    assert record(kv, "one").hash != record(kv, "two").hash


def test_secrets_are_compared_in_constant_time(kv: MemoryKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is `compare_digest`'s, and it is given digests of one length: no other comparison decides."""
    create(kv, id="one", secret=SECRET)
    asked: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        asked.append((len(left), len(right)))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert not access.matches(record(kv, "one"), SECRET)
    assert not access.matches(record(kv, "one"), "x")
    assert asked == [(32, 32)] * 2


@pytest.mark.parametrize("key_id", ["", "ab", "a" * 129, "-ab", "a b", "a/b", "../x", "a\0b", "ab\n", "é123", "a:b"])
def test_what_is_no_id_is_refused_and_never_found(kv: MemoryKV, key_id: str) -> None:
    with pytest.raises(InvalidName):
        create(kv, id=key_id, secret=SECRET)
    assert access.find(kv, key_id) is None


@pytest.mark.parametrize("secret", ["", "short", "x" * (access.SECRET_CHARACTERS_MIN - 1)])
def test_a_secret_that_is_too_short_is_refused_without_being_repeated(kv: MemoryKV, secret: str) -> None:
    with pytest.raises(Invalid) as refused:
        create(kv, id="one", secret=secret)
    assert not secret or secret not in str(refused.value)
    assert not access.any_there(kv)


def test_an_id_is_given_once(kv: MemoryKV) -> None:
    first = create(kv, id="one", secret=SECRET)
    with pytest.raises(AlreadyExists):
        create(kv, Role.OPERATOR, id="one", secret=SECRET + "x")
    assert record(kv, "one").role == first.key.role


def test_repositories_are_checked_and_sorted(kv: MemoryKV) -> None:
    assert create(kv, repositories=["beta", "alpha", "beta"]).key.repositories == ("alpha", "beta")
    with pytest.raises(InvalidName):
        create(kv, repositories=["No Name"])


def test_a_revoked_key_is_gone(kv: MemoryKV) -> None:
    made = create(kv)
    assert access.revoke(kv, made.key.id) == made.key
    assert access.find(kv, made.key.id) is None
    with pytest.raises(NotFound):
        access.revoke(kv, made.key.id)


def test_keys_are_listed_without_their_secrets(kv: MemoryKV) -> None:
    made = [create(kv, id=key_id, secret=SECRET, description=key_id) for key_id in ("two", "one")]
    listed = list(access.scan(kv))
    assert listed == [made[1].key, made[0].key]
    assert SECRET not in repr(listed)


def test_the_operators_key_is_made_kept_and_changed(kv: MemoryKV) -> None:
    access.ensure(kv, FakeClock(), "one", SECRET)
    before = kv.get(keys.access_key("one"))
    access.ensure(kv, FakeClock(), "one", SECRET)
    assert kv.get(keys.access_key("one")) == before
    access.ensure(kv, FakeClock(), "one", SECRET + "2")
    assert access.matches(record(kv, "one"), SECRET + "2")
    assert not access.matches(record(kv, "one"), SECRET)


def test_a_key_of_another_role_becomes_the_operators(kv: MemoryKV) -> None:
    create(kv, Role.READER, id="one", secret=SECRET, repositories=["alpha"])
    shown = access.ensure(kv, FakeClock(), "one", SECRET)
    assert (shown.role, shown.repositories) == (Role.OPERATOR, ())


def test_roles_include_those_before_them() -> None:
    assert Role.READER < Role.WRITER < Role.OPERATOR


def test_a_record_decodes_as_it_was_made(kv: MemoryKV) -> None:
    made = create(kv, repositories=["alpha"], description="d")
    value = kv.get(keys.access_key(made.key.id))
    assert isinstance(value, bytes)
    found = decode(value, AccessKeyRecord)
    assert (found.role, found.repositories, found.description) == (made.key.role, ("alpha",), "d")
