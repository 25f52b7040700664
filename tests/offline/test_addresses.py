"""Keys and buckets against a plain comparison of strings. Needs no Spark."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from refstore.core import ids
from refstore_gc.address_codec import CUT_BYTES, BucketBounds, are_among, encode_addresses, split_by_bucket

OWN = st.builds(
    lambda at_ms: str(ids.new_address(ids.RandomIds(), at_ms)), st.integers(1_700_000_000_000, 1_700_030_000_000)
)
RANGE = st.builds(lambda body: f"_refstore/ranges/{body.hex()}.{'0' * 26}.parquet", st.binary(min_size=32, max_size=32))
ANY = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=70)
ADDRESSES = st.lists(
    st.one_of(OWN, RANGE, ANY, st.sampled_from(["data/", "data/2023111422/", "data/2023111422/01hf"])), max_size=60
)


@given(ADDRESSES, ADDRESSES)
def test_an_address_is_in_the_bucket_of_the_last_cut_that_is_not_above_it(
    addresses: list[str], cuts: list[str]
) -> None:
    ordered = sorted(cuts, key=str.encode)
    plain = [cut.encode()[:CUT_BYTES] for cut in ordered]
    found = BucketBounds.from_addresses(ordered).buckets_of(pa.array(addresses, pa.string()))
    assert found.tolist() == [bisect_right(plain, address.encode()[:CUT_BYTES]) for address in addresses]


@given(
    st.lists(st.one_of(ANY, ANY.map(lambda text: "a" * CUT_BYTES + text))),
    st.lists(st.one_of(ANY, ANY.map(lambda text: "a" * CUT_BYTES + text))),
)
def test_whole_cuts_are_compared_to_their_ends(addresses: list[str], cuts: list[str]) -> None:
    ordered = sorted(cuts)
    found = BucketBounds.from_addresses(ordered, are_whole=True).buckets_of(pa.array(addresses, pa.string()))
    assert found.tolist() == [bisect_right(ordered, address) for address in addresses]


@given(ADDRESSES, st.integers(0, 2**64 - 1))
def test_an_address_has_one_key_whatever_stands_beside_it(addresses: list[str], seed: int) -> None:
    together = encode_addresses(pa.array(addresses, pa.string()), seed)
    assert together.tolist() == [
        int(encode_addresses(pa.array([address], pa.string()), seed)[0]) for address in addresses
    ]
    if len(addresses) > 2:
        sliced = pa.array(addresses, pa.string()).slice(1, len(addresses) - 2)
        assert encode_addresses(sliced, seed).tolist() == together.tolist()[1:-1]


@given(ADDRESSES)
def test_different_addresses_have_different_keys(addresses: list[str]) -> None:
    """By chance they may share one, in one of some billion billions."""
    different = sorted(set(addresses))
    assert len(set(encode_addresses(pa.array(different, pa.string()), 7).tolist())) == len(different)


@given(ADDRESSES, ADDRESSES)
def test_what_is_among_others_is_found_bucket_by_bucket(addresses: list[str], named: list[str]) -> None:
    cuts = BucketBounds.from_addresses(sorted(named[::7], key=str.encode))
    listed, kept = pa.array(addresses, pa.string()), pa.array(named, pa.string())
    buckets = dict(split_by_bucket(cuts.buckets_of(kept), encode_addresses(kept, 3)))
    own, places = encode_addresses(listed, 3), cuts.buckets_of(listed)
    found = [
        bool(are_among(own[at : at + 1], [buckets[place]] if place in buckets else [])[0])
        for at, place in enumerate(places.tolist())
    ]
    assert found == [address in set(named) for address in addresses]


def test_nothing_is_among_nothing() -> None:
    assert are_among(np.array([1, 2], np.uint64), []).tolist() == [False, False]
    assert are_among(np.array([], np.uint64), [np.array([1], np.uint64)]).tolist() == []
