"""Listings as the S3 API reference describes them: which keys a page has, which are rolled up, and what it repeats.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html, API_ListObjects, API_ListObjectVersions
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import pytest

from refstore.operations.upload import Upload
from tests.s3.plain_bucket import SPECIAL_KEYS, PlainBucket
from tests.s3.served_gateway import ServedGateway
from tests.s3.test_gateway_objects import code_of
from tests.s3.test_gateway_requests import RawClient

METHODS: Final = {"list_objects": "Contents", "list_objects_v2": "Contents", "list_object_versions": "Versions"}
KEYS: Final = sorted({*SPECIAL_KEYS, "a", "b", "b/1", "b/2/3", "b0", "c.d.e", "c%d%e", "_x/y", "_x_y", "é/ü"})
PREFIXES: Final = ("", "a", "b/", "c", "_x", "é/", "bell\x07", "a%2", "none")
DELIMITERS: Final = ("", "/", ".", "%", " ", "_", "\n", "\x07", "é", "/2/", "none")


def roll_up(keys: list[str], prefix: str, delimiter: str) -> list[str]:
    """The rows of a listing, by the words of the reference: keys that contain the delimiter behind the prefix are one
    row, which ends with the first delimiter.
    """
    rows: list[str] = []
    for key in keys:
        if not key.startswith(prefix):
            continue
        before, found, _ = key[len(prefix) :].partition(delimiter or key + "x")
        row = prefix + before + found
        if row not in rows:
            rows.append(row)
    return rows


def rows_of(page: dict[str, Any], rows: str) -> tuple[list[str], list[str]]:
    return [each["Key"] for each in page.get(rows, ())], [each["Prefix"] for each in page.get("CommonPrefixes", ())]


@pytest.fixture(scope="module")
def filled(bucket_gateway: ServedGateway) -> PlainBucket:
    client = bucket_gateway.client()
    client.create_bucket(Bucket="filled")
    bucket = PlainBucket(bucket_gateway, client, "filled")
    for key in KEYS:
        bucket.put(key, key.encode())
    return bucket


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("size", "prefixes"), [(1, ("b/",)), (5, ("",)), (1000, PREFIXES)])
def test_what_is_listed_and_what_is_rolled_up(
    filled: PlainBucket, method: str, size: int, prefixes: tuple[str, ...]
) -> None:
    paginator = filled.client.get_paginator(method)
    for prefix in prefixes:
        for delimiter in DELIMITERS:
            pages = paginator.paginate(
                Bucket=filled.name, Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": size}
            )
            listed: list[str] = []
            for page in pages:
                keys, prefixes = rows_of(page, METHODS[method])
                assert len(keys) + len(prefixes) <= size
                assert set(keys) <= set(KEYS)
                assert all(each.endswith(delimiter) for each in prefixes)
                listed += sorted(keys + prefixes)
            assert listed == roll_up(KEYS, prefix, delimiter), (prefix, delimiter)


@pytest.mark.parametrize("after", ["", "a", "b", "b/1", "b/9", "é", "\x07", "zzz", "\U0001f600", "\U0001f601"])
def test_a_listing_begins_behind_a_key_whether_that_is_there_or_not(filled: PlainBucket, after: str) -> None:
    expected = [key for key in KEYS if key > after]
    for method, parameter in (("list_objects", "Marker"), ("list_objects_v2", "StartAfter")):
        page = getattr(filled.client, method)(Bucket=filled.name, **{parameter: after})
        assert rows_of(page, "Contents")[0] == expected
        assert page.get(parameter, "") == after
    page = filled.client.list_object_versions(Bucket=filled.name, KeyMarker=after)
    assert rows_of(page, "Versions")[0] == expected


def test_a_token_counts_more_than_a_key_to_start_after(filled: PlainBucket) -> None:
    first = filled.client.list_objects_v2(Bucket=filled.name, StartAfter="b/1", MaxKeys=1)
    token = first["NextContinuationToken"]
    second = filled.client.list_objects_v2(Bucket=filled.name, StartAfter="b/1", ContinuationToken=token)
    assert rows_of(second, "Contents")[0] == [key for key in KEYS if key > first["Contents"][0]["Key"]]
    assert (second["ContinuationToken"], second["StartAfter"]) == (token, "b/1")
    assert "NextContinuationToken" not in second


def test_a_page_repeats_what_was_asked(filled: PlainBucket) -> None:
    asked = {"Bucket": filled.name, "Prefix": "b", "Delimiter": "/", "MaxKeys": 1}
    expected = {"Name": filled.name, "Prefix": "b", "Delimiter": "/", "MaxKeys": 1, "IsTruncated": True}
    for method in METHODS:
        page = getattr(filled.client, method)(**asked)
        assert {name: page[name] for name in expected} == expected
    v2 = filled.client.list_objects_v2(**asked)
    assert v2["KeyCount"] == 1
    v1 = filled.client.list_objects(**asked)
    assert v1["NextMarker"] == "b"
    page = filled.client.list_objects_v2(Bucket=filled.name, Prefix="none")
    assert (page["KeyCount"], page["IsTruncated"], "Contents" in page, "Delimiter" in page) == (0, False, False, False)


@pytest.mark.parametrize("method", METHODS)
def test_names_are_encoded_where_the_client_asks(filled: PlainBucket, method: str) -> None:
    """boto3 decodes what it asked for by itself, and leaves as it is what its user asked for."""
    page = getattr(filled.client, method)(Bucket=filled.name, Prefix="a", Delimiter="b", EncodingType="url")
    keys, prefixes = rows_of(page, METHODS[method])
    assert page["EncodingType"] == "url"
    assert sorted(keys + prefixes) == sorted(quote(row, safe="/") for row in roll_up(KEYS, "a", "b"))


def test_what_a_row_has(filled: PlainBucket) -> None:
    head = filled.client.head_object(**filled.at("b/1"))
    expected = {"Key": "b/1", "Size": 3, "ETag": head["ETag"], "LastModified": head["LastModified"]}
    for method, rows in METHODS.items():
        (row,) = getattr(filled.client, method)(Bucket=filled.name, Prefix="b/1")[rows]
        assert {name: row[name] for name in expected} == expected
        assert row["StorageClass"] == "STANDARD"
        assert ("Owner" in row) == (method != "list_objects_v2"), "V2 has owners where they are asked for"
    for fetched in (False, True):
        (row,) = filled.client.list_objects_v2(Bucket=filled.name, Prefix="b/1", FetchOwner=fetched)["Contents"]
        assert ("Owner" in row) == fetched


def test_a_page_has_a_thousand_keys_at_most(bucket: PlainBucket) -> None:
    repo = bucket.gateway.lake.repository(bucket.name)
    repo.upload_many("main", [Upload(f"{number:04}", b"") for number in range(1001)])
    for method, rows in METHODS.items():
        for asked in ({}, {"MaxKeys": 2000}):
            page = getattr(bucket.client, method)(Bucket=bucket.name, **asked)
            assert (len(page[rows]), page["MaxKeys"], page["IsTruncated"]) == (1000, 1000, True)
        exact = getattr(bucket.client, method)(Bucket=bucket.name, Prefix="0", MaxKeys=1000)
        assert (len(exact[rows]), exact["IsTruncated"]) == (1000, False)


@pytest.mark.parametrize("query", ["max-keys=x", "max-keys=-1", "max-keys=9999999999", "encoding-type=xml"])
def test_parameters_without_a_meaning_are_refused(filled: PlainBucket, query: str) -> None:
    request_raw = RawClient(filled.gateway)
    for more in ("", "list-type=2", "versions="):
        answer = request_raw("GET", f"/{filled.name}", "&".join(sorted(filter(None, (more, query)))))
        assert (answer.status, answer.code) == (400, "InvalidArgument"), more
    assert code_of(filled.client.list_objects_v2, Bucket=filled.name, ContinuationToken="b") == (
        "InvalidArgument",
        400,
    )


def test_an_empty_parameter_is_as_none(filled: PlainBucket) -> None:
    request_raw = RawClient(filled.gateway)
    bare = request_raw("GET", f"/{filled.name}", "list-type=2")
    empty = request_raw(
        "GET", f"/{filled.name}", "delimiter=&encoding-type=&list-type=2&max-keys=&prefix=&start-after="
    )
    assert (empty.status, empty.body) == (200, bare.body)
