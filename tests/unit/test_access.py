"""Access keys: what is stored of them, and who passes."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import pytest

from refstore.core.clock import Clock
from refstore.errors import AlreadyExists, Conflict, Invalid, InvalidName, NotFound
from refstore.kv.base import KV
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.lake_records import AccessKeyRecord
from refstore.service import access_keys
from refstore.service.access_keys import Role
from tests.kit.clock import FakeClock

SECRET = "a-secret-of-enough-characters"


@pytest.fixture
def kv() -> MemoryKV:
    return MemoryKV()


def lake_of(kv: KV, clock: Clock | None = None) -> Lake:
    return Lake(kv, "memory://access", clock=clock or FakeClock())


def create(kv: MemoryKV, role: Role = Role.WRITER, **options: object) -> access_keys.NewKey:
    return access_keys.create_key(lake_of(kv), role, **options)


def record(kv: MemoryKV, key_id: str) -> AccessKeyRecord:
    found = access_keys.find_key(kv, key_id)
    assert found is not None
    return found


def test_a_key_passes_with_its_own_secret_only(kv: MemoryKV) -> None:
    one, other = create(kv), create(kv)
    assert access_keys.find_secret(record(kv, one.key.id), one.secret)
    for wrong in (other.secret, one.secret[:-1], one.secret + "x", one.secret.lower(), "", "\ud800"):
        assert not access_keys.find_secret(record(kv, one.key.id), wrong)


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
    assert not access_keys.find_secret(record(kv, "one"), SECRET)
    assert not access_keys.find_secret(record(kv, "one"), "x")
    assert asked == [(32, 32)] * 4


def test_a_key_in_rotation_takes_as_many_comparisons_as_any_other(
    kv: MemoryKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nobody hears by the time whether a key has one secret or two, or exists."""
    made = create(kv)
    one = record(kv, made.key.id)
    access_keys.rotate_secret(lake_of(kv), made.key.id, overlap_ms=1000)
    two = record(kv, made.key.id)
    real, asked = hmac.compare_digest, [0]

    def compare(left: bytes, right: bytes) -> bool:
        asked[0] += 1
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    counts: list[int] = []
    for found, secret in ((one, made.secret), (one, "x"), (two, made.secret), (two, "x")):
        asked[0] = 0
        access_keys.find_secret(found, secret)
        counts.append(asked[0])
    assert counts == [2, 2, 2, 2]


@pytest.mark.parametrize("key_id", ["", "ab", "a" * 129, "-ab", "a b", "a/b", "../x", "a\0b", "ab\n", "é123", "a:b"])
def test_what_is_no_id_is_refused_and_never_found(kv: MemoryKV, key_id: str) -> None:
    with pytest.raises(InvalidName):
        create(kv, id=key_id, secret=SECRET)
    assert access_keys.find_key(kv, key_id) is None


@pytest.mark.parametrize("secret", ["", "short", "x" * (access_keys.SECRET_CHARACTERS_MIN - 1)])
def test_a_secret_that_is_too_short_is_refused_without_being_repeated(kv: MemoryKV, secret: str) -> None:
    with pytest.raises(Invalid) as refused:
        create(kv, id="one", secret=secret)
    assert not secret or secret not in str(refused.value)
    assert not access_keys.has_any_key(kv)


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
    assert access_keys.revoke_key(lake_of(kv), made.key.id) == made.key
    assert access_keys.find_key(kv, made.key.id) is None
    with pytest.raises(NotFound):
        access_keys.revoke_key(lake_of(kv), made.key.id)


def test_keys_are_listed_without_their_secrets(kv: MemoryKV) -> None:
    made = [create(kv, id=key_id, secret=SECRET, description=key_id) for key_id in ("two", "one")]
    listed = list(access_keys.scan_keys(kv))
    assert listed == [made[1].key, made[0].key]
    assert SECRET not in repr(listed)


def test_the_operators_key_is_made_kept_and_changed(kv: MemoryKV) -> None:
    access_keys.ensure_key(lake_of(kv), "one", SECRET)
    before = kv.get(keys.access_key("one"))
    access_keys.ensure_key(lake_of(kv), "one", SECRET)
    assert kv.get(keys.access_key("one")) == before
    access_keys.ensure_key(lake_of(kv), "one", SECRET + "2")
    assert access_keys.find_secret(record(kv, "one"), SECRET + "2")
    assert not access_keys.find_secret(record(kv, "one"), SECRET)


def test_a_key_of_another_role_becomes_the_operators(kv: MemoryKV) -> None:
    create(kv, Role.READER, id="one", secret=SECRET, repositories=["alpha"])
    shown = access_keys.ensure_key(lake_of(kv), "one", SECRET)
    assert (shown.role, shown.repositories) == (Role.OPERATOR, ())


def test_roles_include_those_before_them() -> None:
    assert Role.READER < Role.WRITER < Role.OPERATOR


def test_a_record_decodes_as_it_was_made(kv: MemoryKV) -> None:
    made = create(kv, repositories=["alpha"], description="d")
    value = kv.get(keys.access_key(made.key.id))
    assert isinstance(value, bytes)
    found = decode(value, AccessKeyRecord)
    assert (found.role, found.repositories, found.description) == (made.key.role, ("alpha",), "d")


def test_a_rotated_key_has_two_secrets_until_the_overlap_ends(kv: MemoryKV) -> None:
    clock, old = FakeClock(), create(kv)
    new = access_keys.rotate_secret(lake_of(kv, clock), old.key.id, overlap_ms=60_000)
    assert new.secret != old.secret
    assert new.key.old_secret_ends_ms == clock.now_ms() + 60_000

    def refusals() -> list[str]:
        found = record(kv, old.key.id)
        proven = [access_keys.find_secret(found, secret) for secret in (old.secret, new.secret)]
        return [access_keys.refusal("KEY", found, each, clock.now_ms()) for each in proven if each is not None]

    assert refusals() == ["", ""]
    clock.advance(60)
    assert refusals()[0].startswith("this secret of access key 'KEY' ended at ")
    assert refusals()[1] == ""


def test_a_third_secret_is_refused_while_two_are_good_unless_all_others_end(kv: MemoryKV) -> None:
    clock, first = FakeClock(), create(kv)
    second = access_keys.rotate_secret(lake_of(kv, clock), first.key.id, overlap_ms=60_000)
    with pytest.raises(Conflict, match="--only old-secret"):
        access_keys.rotate_secret(lake_of(kv, clock), first.key.id, overlap_ms=60_000)
    third = access_keys.rotate_secret(lake_of(kv, clock), first.key.id, overlap_ms=0)
    found = record(kv, first.key.id)
    assert access_keys.find_secret(found, first.secret) is None
    ended, live = access_keys.find_secret(found, second.secret), access_keys.find_secret(found, third.secret)
    assert ended is not None
    assert live is not None
    assert (access_keys.has_ended(ended, clock.now_ms()), access_keys.has_ended(live, clock.now_ms())) == (True, False)


def test_an_overlap_is_ended_once(kv: MemoryKV) -> None:
    clock, made = FakeClock(), create(kv)
    with pytest.raises(Conflict, match="one secret only"):
        access_keys.end_overlap(lake_of(kv, clock), made.key.id)
    access_keys.rotate_secret(lake_of(kv, clock), made.key.id, overlap_ms=60_000)
    assert access_keys.end_overlap(lake_of(kv, clock), made.key.id).old_secret_ends_ms == clock.now_ms()
    with pytest.raises(Conflict, match="one secret only"):
        access_keys.end_overlap(lake_of(kv, clock), made.key.id)


@pytest.mark.parametrize("change", ["rotate", "end_overlap", "end_tokens"])
@pytest.mark.parametrize("key_id", ["NOBODY", "no id", ""])
def test_what_is_no_key_is_not_changed(kv: MemoryKV, change: str, key_id: str) -> None:
    changes: dict[str, Callable[[], object]] = {
        "rotate": lambda: access_keys.rotate_secret(lake_of(kv), key_id, overlap_ms=0),
        "end_overlap": lambda: access_keys.end_overlap(lake_of(kv), key_id),
        "end_tokens": lambda: access_keys.end_tokens(lake_of(kv), key_id),
    }
    with pytest.raises(NotFound):
        changes[change]()
    assert not access_keys.has_any_key(kv)


def test_changes_of_a_key_that_come_together_are_all_made(kv: MemoryKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was made on what another one has replaced meanwhile is made again."""
    made = create(kv)
    real, first = kv.set_if, [True]

    def set_if(*what: Any, **options: Any) -> bool:
        if first[0]:
            first[0] = False
            access_keys.end_tokens(lake_of(kv), made.key.id)
        return real(*what, **options)

    monkeypatch.setattr(kv, "set_if", set_if)
    new = access_keys.rotate_secret(lake_of(kv), made.key.id, overlap_ms=1000)
    found = record(kv, made.key.id)
    assert found.token_generation == 1
    assert access_keys.find_secret(found, new.secret) is not None


def test_the_environment_does_not_bring_back_a_secret_that_a_rotation_ended(kv: MemoryKV) -> None:
    clock = FakeClock()
    access_keys.ensure_key(lake_of(kv, clock), "one", SECRET)
    new = access_keys.rotate_secret(lake_of(kv, clock), "one", overlap_ms=60_000)
    access_keys.ensure_key(lake_of(kv, clock), "one", SECRET)
    assert access_keys.find_secret(record(kv, "one"), new.secret) is not None
    clock.advance(60)
    before = kv.get(keys.access_key("one"))
    with pytest.raises(Conflict, match="give its new secret"):
        access_keys.ensure_key(lake_of(kv, clock), "one", SECRET)
    assert kv.get(keys.access_key("one")) == before


def test_a_key_that_would_have_expired_is_not_made(kv: MemoryKV) -> None:
    with pytest.raises(Invalid, match="would have expired"):
        create(kv, expires_ms=FakeClock().now_ms())
    assert not access_keys.has_any_key(kv)


def test_the_last_use_of_a_key_is_not_told_of_another_one_with_its_id(kv: MemoryKV) -> None:
    clock = FakeClock()
    create(kv, id="one", secret=SECRET)
    access_keys.note_use(kv, clock, "one")
    assert next(access_keys.scan_keys(kv)).last_used_ms == clock.now_ms()
    access_keys.revoke_key(lake_of(kv), "one")
    access_keys.note_use(kv, clock, "one")  # by a service that knew it for a moment longer
    clock.advance(1)
    access_keys.create_key(lake_of(kv, clock), Role.READER, id="one", secret=SECRET)
    assert next(access_keys.scan_keys(kv)).last_used_ms == 0
