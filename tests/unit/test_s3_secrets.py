"""S3 secrets: encrypted under a key that the KV does not have, and made, rotated and ended as a key's own secret is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from refstore.errors import Conflict, CorruptRecord, Invalid, NotFound
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role
from refstore.service.s3_secrets import SecretCipher, end_s3_secrets, make_s3_secret, read_secrets
from tests.kit.clock import FakeClock

CIPHER = SecretCipher(b"a server key of more than 32 characters")
OTHER = SecretCipher(b"another key of more than 32 characters")
OVERLAP_MS = 60_000


@pytest.fixture
def lake() -> Lake:
    lake = Lake(MemoryKV(), "memory://s3-secrets", clock=FakeClock())
    access_keys.create_key(lake, Role.WRITER, id="one")
    return lake


def valid_secrets(lake: Lake, cipher: SecretCipher = CIPHER, key_id: str = "one") -> tuple[str, ...]:
    caller = read_secrets(lake.kv, lake.clock, cipher, key_id)
    assert caller is not None
    return caller.secrets


def test_a_key_has_no_s3_secret_until_one_is_made(lake: Lake) -> None:
    assert valid_secrets(lake) == ()
    made = make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS)
    assert valid_secrets(lake) == (made.secret,)
    assert (len(made.secret), made.key.s3_secret_created_ms) == (40, lake.clock.now_ms())
    assert read_secrets(lake.kv, lake.clock, CIPHER, "nobody") is None
    record = access_keys.find_key(lake.kv, "one")
    assert record is not None
    assert access_keys.find_secret(record, made.secret) is None, "it opens the S3 gateway only"


def test_the_kv_has_no_s3_secret_that_can_be_read(lake: Lake) -> None:
    made = [make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS, secret="s" * 40) for _ in range(2)]
    value = lake.kv.get(keys.access_key("one"))
    assert isinstance(value, bytes)
    assert made[0].secret.encode() not in value
    record = access_keys.find_key(lake.kv, "one")
    assert record is not None
    first, second = record.s3_secrets
    assert first.ciphertext != second.ciphertext, "equal secrets are stored differently"
    with pytest.raises(Invalid, match="another server key"):
        valid_secrets(lake, OTHER)


def test_an_encrypted_secret_is_bound_to_its_key_and_to_every_byte(lake: Lake) -> None:
    access_keys.create_key(lake, Role.OPERATOR, id="two")
    make_s3_secret(lake, CIPHER, "one", overlap_ms=0)
    one, two = (access_keys.find_key(lake.kv, key_id) for key_id in ("one", "two"))
    assert one is not None
    assert two is not None
    lake.kv.set(keys.access_key("two"), encode(msgspec.structs.replace(two, s3_secrets=one.s3_secrets)))
    with pytest.raises(CorruptRecord, match="make a new one"):
        valid_secrets(lake, key_id="two")
    (secret,) = one.s3_secrets
    for changed in (
        secret._replace(ciphertext=secret.ciphertext[:-1] + bytes([secret.ciphertext[-1] ^ 1])),
        secret._replace(ciphertext=b""),
        secret._replace(nonce=bytes(12)),
        secret._replace(nonce=b""),
    ):
        lake.kv.set(keys.access_key("one"), encode(msgspec.structs.replace(one, s3_secrets=(changed,))))
        with pytest.raises(CorruptRecord):
            valid_secrets(lake)


def test_a_rotation_leaves_two_secrets_until_the_overlap_ends(lake: Lake) -> None:
    first = make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS)
    second = make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS)
    assert second.key.old_s3_secret_ends_ms == lake.clock.now_ms() + OVERLAP_MS
    assert valid_secrets(lake) == (second.secret, first.secret)
    with pytest.raises(Conflict, match="revoke one --only old-s3-secret"):
        make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS)
    assert isinstance(lake.clock, FakeClock)
    lake.clock.advance(OVERLAP_MS / 1000)
    assert valid_secrets(lake) == (second.secret,)
    third = make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS)
    assert valid_secrets(lake) == (third.secret, second.secret)
    fourth = make_s3_secret(lake, CIPHER, "one", overlap_ms=0)
    assert valid_secrets(lake) == (fourth.secret,)


def test_secrets_are_ended_the_old_one_or_all(lake: Lake) -> None:
    for only_old in (True, False):
        with pytest.raises(Conflict, match="refstore keys rotate one --s3"):
            end_s3_secrets(lake, "one", only_old=only_old)
    make_s3_secret(lake, CIPHER, "one", overlap_ms=0)
    with pytest.raises(Conflict, match="no old S3 secret"):
        end_s3_secrets(lake, "one", only_old=True)
    new = make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS)
    assert end_s3_secrets(lake, "one", only_old=True).old_s3_secret_ends_ms == 0
    assert valid_secrets(lake) == (new.secret,)
    assert end_s3_secrets(lake, "one").s3_secret_created_ms == 0
    assert valid_secrets(lake) == ()


def test_after_a_change_of_the_server_key_a_new_secret_goes_on(lake: Lake) -> None:
    make_s3_secret(lake, OTHER, "one", overlap_ms=0)
    new = make_s3_secret(lake, CIPHER, "one", overlap_ms=OVERLAP_MS)
    assert valid_secrets(lake) == (new.secret,)


def test_s3_secrets_outlive_changes_of_the_keys_own_secret_and_end_with_the_key(lake: Lake) -> None:
    made = make_s3_secret(lake, CIPHER, "one", overlap_ms=0)
    access_keys.rotate_secret(lake, "one", overlap_ms=OVERLAP_MS)
    access_keys.end_tokens(lake, "one")
    assert valid_secrets(lake) == (made.secret,)
    access_keys.revoke_key(lake, "one")
    access_keys.create_key(lake, Role.WRITER, id="one")
    assert valid_secrets(lake) == ()


def test_who_had_fewer_rights_gets_none_by_the_key_of_the_environment(lake: Lake) -> None:
    make_s3_secret(lake, CIPHER, "one", overlap_ms=0)
    access_keys.ensure_key(lake, "one", "a-secret-of-enough-characters")
    assert valid_secrets(lake) == ()
    made = make_s3_secret(lake, CIPHER, "one", overlap_ms=0)
    access_keys.ensure_key(lake, "one", "another-secret-of-enough-characters")
    assert valid_secrets(lake) == (made.secret,)


def test_an_expired_key_says_so(lake: Lake) -> None:
    expires_ms = lake.clock.now_ms() + OVERLAP_MS
    access_keys.create_key(lake, Role.READER, id="two", expires_ms=expires_ms)
    make_s3_secret(lake, CIPHER, "two", overlap_ms=0)
    caller = read_secrets(lake.kv, lake.clock, CIPHER, "two")
    assert caller is not None
    assert s3_secrets.explain_refusal("two", caller.record, expires_ms - 1) == ""
    assert "expired" in s3_secrets.explain_refusal("two", caller.record, expires_ms)


def test_what_is_no_key_or_no_secret_is_refused(lake: Lake) -> None:
    for key_id in ("nobody", "no id", ""):
        with pytest.raises(NotFound):
            make_s3_secret(lake, CIPHER, key_id, overlap_ms=0)
        with pytest.raises(NotFound):
            end_s3_secrets(lake, key_id)
    with pytest.raises(Invalid, match="at least 20 characters"):
        make_s3_secret(lake, CIPHER, "one", overlap_ms=0, secret="short")


def test_the_server_key_is_the_settings_or_that_of_the_folder(lake: Lake, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    assert s3_secrets.read_cipher("", None) is None
    in_folder = s3_secrets.read_cipher("", shared)
    assert in_folder is not None
    (file,) = shared.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("s3.key", 0o660)
    made = make_s3_secret(lake, in_folder, "one", overlap_ms=0)
    again, by_setting = s3_secrets.read_cipher("", shared), s3_secrets.read_cipher(file.read_text().strip(), tmp_path)
    assert again is not None
    assert by_setting is not None
    assert valid_secrets(lake, again) == valid_secrets(lake, by_setting) == (made.secret,)
    assert [each.name for each in tmp_path.iterdir()] == ["shared"], "with a setting, no file is made"
