"""Objects are answered without the model; the answers say what the model says."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from refstore.core.ids import Address
from refstore.records.staging_records import StoredEntry
from refstore_api.models import ObjectStats, ObjectStatsList, Pagination
from refstore_api.object_stats import make_object_response, object_fields, physical_url
from refstore_api.page_responses import make_page_response
from refstore_api.signed_urls import SignedUrl
from refstore_http.headers import content_type_of
from refstore_http.json_responses import make_response
from tests.reaper_world import World

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CTX = World().repo.context


@given(
    st.builds(
        StoredEntry,
        address=st.sampled_from([Address("s3://elsewhere/x"), Address("data/2026112407/01kajkcwc0sencvnebs3mrytt1")]),
        size_bytes=st.integers(0, 1 << 60),
        checksum=TEXTS,
        mtime_ms=st.integers(0, 1 << 50),
        metadata=st.dictionaries(TEXTS, TEXTS, max_size=2),
        content_type=TEXTS,
        md5=TEXTS,
    ),
    TEXTS,
    st.booleans(),
    st.booleans(),
)
def test_an_item_of_a_listing_is_what_stat_answers(entry: StoredEntry, path: str, metadata: bool, sign: bool) -> None:
    signed = SignedUrl("https://store/x?signature", 60) if sign else None
    item = object_fields(CTX, path, entry, user_metadata=metadata, signed=signed)
    model = ObjectStats(
        path=path,
        path_type="object",
        physical_address=signed.url if signed else physical_url(CTX, entry.address),
        physical_address_expiry=signed.expires_seconds if signed else None,
        checksum=entry.md5 or entry.checksum,
        size_bytes=entry.size_bytes,
        mtime=entry.mtime_ms // 1000,
        metadata=entry.metadata if metadata else None,
        content_type=content_type_of(entry),
    )
    assert ObjectStats.model_validate(msgspec.to_builtins(item)) == model
    alone = make_object_response(CTX, path, entry, 201, user_metadata=metadata, signed=signed)
    assert alone.status_code == 201
    assert ObjectStats.model_validate_json(alone.body) == model
    pagination = Pagination(has_more=False, next_offset="", results=1, max_per_page=1)
    page = make_response(ObjectStatsList.model_construct(pagination=pagination, results=[model]))
    assert ObjectStatsList.model_validate_json(make_page_response(pagination, [item]).body) == (
        ObjectStatsList.model_validate_json(page.body)
    )


def test_a_common_prefix_has_a_name_only() -> None:
    item = ObjectStats.model_validate(msgspec.to_builtins(object_fields(CTX, "events/", None)))
    assert (item.path, item.path_type, item.physical_address, item.size_bytes) == ("events/", "common_prefix", "", None)
