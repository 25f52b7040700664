"""The scans of location records: all of them, those that change, and the addresses that they name."""

from __future__ import annotations

import pytest

from refstore.core import ids
from refstore.errors import CorruptRecord
from refstore.kv.base import Key
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.location_records import Location
from tests.purging import content_of, content_to_be, intend, rewrite
from tests.reaper_world import World


def test_what_is_at_rest_is_left_out_and_every_address_is_named() -> None:
    repo = World().repo
    for path in ("rest", "backup", "intent"):
        repo.upload("main", path, path.encode())
    identities = {path: repo.stat("main", path).address for path in ("rest", "backup", "intent")}
    contents = {path: content_of(rewrite(repo, "main", path, b"x" + path.encode())) for path in ("rest", "backup")}
    intended = intend(repo, "main", "intent")
    assert intended is not None
    locations, kv = repo.context.locations, repo.context.kv
    (rest,) = locations.get_many([ids.own_address(identities["rest"])])
    assert rest is not None
    at_rest = Location(rest.current, rest.replacement_count)
    kv.set(keys.location(repo.context.repo, ids.own_address(identities["rest"])), encode(at_rest))

    assert {each.identity for each in locations.scan()} == set(identities.values())
    assert {each.identity for each in locations.scan_changing()} == {identities["backup"], identities["intent"]}
    assert {identity: set(named) for identity, named in locations.scan_addresses()} == {
        identities["rest"]: {contents["rest"]},
        identities["backup"]: {contents["backup"], identities["backup"]},
        identities["intent"]: {identities["intent"], content_to_be(intended)},
    }


@pytest.mark.parametrize("value", [b"\x93", b"\x93\x55\x01\x02", b"\x93\x01\xc0\x00", b"", b"\xc1"])
def test_a_damaged_record_stops_a_scan(value: bytes) -> None:
    repo = World().repo
    repo.upload("main", "a", b"a")
    identity = repo.resolve("main", "a").entry.address
    key: Key = keys.location(repo.context.repo, identity)
    repo.context.kv.set(key, value)
    with pytest.raises(CorruptRecord):
        list(repo.context.locations.scan_addresses())
