"""What S3 says of an object stands in fields of its entry: no client gives it as metadata, and a few bytes of it stand
for few parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pytest

from refstore.core import ids
from refstore.core.ids import BranchName
from refstore.operations.copy import Copy
from refstore.operations.upload import Upload
from refstore.public_types import stored_entry
from refstore.records import keys as record_keys
from refstore.records.encoding import encode
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from refstore_s3.object_parts import read_parts
from tests.kit.names_of_ours import ATTACK
from tests.s3.served_gateway import REPOSITORY, ServedGateway
from tests.s3.test_gateway_objects import code_of

KEY: Final = {"Bucket": REPOSITORY, "Key": "main/new"}
PART: Final = 5 << 20


@pytest.fixture
def s3(gateway: ServedGateway) -> Any:
    return gateway.client()


WAYS: Final[Mapping[str, Callable[[Any, dict[str, str]], tuple[str, int]]]] = {
    "PutObject": lambda s3, metadata: code_of(s3.put_object, **KEY, Body=b"1", Metadata=metadata),
    "CreateMultipartUpload": lambda s3, metadata: code_of(s3.create_multipart_upload, **KEY, Metadata=metadata),
    "CopyObject": lambda s3, metadata: code_of(
        s3.copy_object, **KEY, CopySource=KEY | {"Key": "main/there"}, MetadataDirective="REPLACE", Metadata=metadata
    ),
    "CopyObject onto itself": lambda s3, metadata: code_of(
        s3.copy_object,
        **KEY | {"Key": "main/there"},
        CopySource=KEY | {"Key": "main/there"},
        MetadataDirective="REPLACE",
        Metadata=metadata,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["refstore.purge", "Refstore.Transaction", "refstore.transaction"])
def test_no_operation_takes_a_name_of_ours(gateway: ServedGateway, s3: Any, way: str, name: str) -> None:
    gateway.repository.upload("main", "there", b"1")
    assert WAYS[way](s3, {name: "x", "owner": "ann"}) == ("InvalidRequest", 400)
    assert not gateway.repository.stat_many("main", ["new"])
    assert gateway.repository.stat("main", "there").metadata == {}


def test_names_of_ours_that_are_stored_are_not_believed(gateway: ServedGateway, s3: Any) -> None:
    """However they came into the record: ETag and parts are read from fields that no metadata reaches."""
    put = s3.put_object(**KEY, Body=b"1")
    context = gateway.repository.context
    token = gateway.repository.context.branches.read_open(BranchName("main")).record.token
    key = record_keys.entry(context.repo, token, ids.object_path("new"))
    entry = stored_entry(gateway.repository.stat("main", "new"))
    for metadata in ({"s3:etag": "forged", "s3:checksum-crc32": "x"}, ATTACK):
        context.kv.set(key, encode(msgspec.structs.replace(entry, metadata=metadata)))
        head = s3.head_object(**KEY, PartNumber=1, ChecksumMode="ENABLED")
        assert (head["ETag"], head["ChecksumCRC32"]) == (put["ETag"], put["ChecksumCRC32"])
        assert (head["Metadata"], head.get("PartsCount")) == ({}, None)
        assert code_of(s3.put_object, **KEY, Body=b"2", IfMatch='"forged"') == ("PreconditionFailed", 412)
    s3.delete_object(**KEY)


RUNS: Final = {
    "many parts of no bytes": ((9999, 0),) * 1160,
    "one run too long": ((10_001, 1),),
    "one run of a million": ((10**6, 1),),
    "runs that end each other": ((20_000, 1), (-20_000, 1)),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_few_bytes_stand_for_few_parts(gateway: ServedGateway, s3: Any, case: str) -> None:
    """A record is believed no more than it can say: what it stands for is counted before it is made."""
    content = ContentDescription(etag="e-2", part_runs=RUNS[case])
    (entry,) = gateway.repository.upload_many("main", [Upload("runs", b"1", s3=lambda: S3Attributes(content))])
    key = KEY | {"Key": "main/runs"}
    assert read_parts(stored_entry(entry)) == []
    assert code_of(s3.get_object, **key, PartNumber=2) == ("InvalidPart", 400)
    assert "PartsCount" not in s3.head_object(**key, PartNumber=1)
    assert "ObjectParts" not in s3.get_object_attributes(**key, ObjectAttributes=["ObjectParts", "ETag"])


def test_as_many_parts_as_an_upload_has_are_shown(gateway: ServedGateway, s3: Any) -> None:
    content = ContentDescription(etag="e-10000", part_runs=((9_999, 1), (1, 5)))
    gateway.repository.upload_many("main", [Upload("most", b"1" * 10_004, s3=lambda: S3Attributes(content))])
    key = KEY | {"Key": "main/most"}
    assert s3.head_object(**key, PartNumber=1)["PartsCount"] == 10_000
    assert s3.get_object(**key, PartNumber=10_000)["Body"].read() == b"11111"


def joined(s3: Any, key: Mapping[str, str]) -> Any:
    begun = s3.create_multipart_upload(
        **key, Metadata={"owner": "ann"}, Tagging="a=1", CacheControl="no-store", ChecksumAlgorithm="SHA256"
    )
    upload = {**key, "UploadId": begun["UploadId"]}
    parts = [
        {"PartNumber": number, **{name: part[name] for name in ("ETag", "ChecksumSHA256")}}
        for number, body in ((1, b"a" * PART), (2, b"b"))
        for part in [s3.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm="SHA256")]
    ]
    return s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


def shown(s3: Any, key: str) -> dict[str, Any]:
    found = {"Bucket": REPOSITORY, "Key": key}
    head = s3.head_object(**found, ChecksumMode="ENABLED")
    second = s3.head_object(**found, PartNumber=2, ChecksumMode="ENABLED")
    names = ("ETag", "ChecksumSHA256", "ChecksumType", "Metadata", "CacheControl", "ContentLength")
    return {
        **{name: head[name] for name in names},
        "second": (second["ContentLength"], second["PartsCount"], second["ChecksumSHA256"]),
        "tags": s3.get_object_tagging(**found)["TagSet"],
    }


def test_a_commit_a_copy_and_a_merge_keep_what_s3_says(gateway: ServedGateway, s3: Any) -> None:
    repo = gateway.repository
    repo.commit("main", "before", allow_empty=True)
    repo.create_branch("dev", source="main")
    made = joined(s3, {"Bucket": REPOSITORY, "Key": "dev/joined"})
    expected = shown(s3, "dev/joined")
    assert (expected["ETag"], expected["ChecksumSHA256"]) == (made["ETag"], made["ChecksumSHA256"])
    assert (expected["ChecksumType"], expected["Metadata"]) == ("COMPOSITE", {"owner": "ann"})
    assert (expected["second"][:2], expected["tags"]) == ((1, 2), [{"Key": "a", "Value": "1"}])
    assert repo.stat("dev", "joined").metadata == {"owner": "ann"}
    repo.commit("dev", "joined")
    repo.copy_many("dev", [Copy("joined", "copied")], to_branch="dev")
    s3.copy_object(Bucket=REPOSITORY, Key="dev/copied by s3", CopySource={"Bucket": REPOSITORY, "Key": "dev/joined"})
    repo.commit("dev", "copied")
    repo.merge("dev", into="main")
    keys = ("dev/joined", "dev/copied", "dev/copied by s3", "main/joined", "main/copied")
    assert [shown(s3, key) for key in keys] == [expected] * len(keys)
