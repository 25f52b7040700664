"""Copies, tags, deletions of many keys and buckets, through the gateway with boto3."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from refstore.configuration.settings import S3Settings
from refstore.core import ids
from refstore.operations import change_metadata as change_metadata_module
from refstore.operations import copy as copy_operation
from refstore.operations.upload import Upload
from refstore.public_types import stored_entry
from refstore.records import keys as record_keys
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from refstore.records.staging_records import sources_of_copy
from refstore.service.access_keys import Role
from refstore_s3 import object_copies
from refstore_s3.conditions import check_conditions
from tests.kit.logged_events import collecting_events
from tests.s3.served_gateway import REPOSITORY, ServedGateway, serve_gateway
from tests.s3.test_gateway_objects import code_of

OTHER = "other"


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with serve_gateway(S3Settings(buckets=("pinned=lake:main",), create_buckets=True)) as served:
        served.lake.create_repository(OTHER)
        yield served


@pytest.fixture
def s3(gateway: ServedGateway) -> Any:
    return gateway.client()


class TestCopies:
    def test_a_copy_within_a_repository_moves_no_data(self, gateway: ServedGateway, s3: Any) -> None:
        source = {"Bucket": REPOSITORY, "Key": "main/from é+"}
        put = s3.put_object(**source, Body=b"1", Metadata={"a": "b"}, ContentType="text/plain", Tagging="x=1")
        copied = s3.copy_object(CopySource=source, Bucket=REPOSITORY, Key="main/to")["CopyObjectResult"]
        assert (copied["ETag"], copied["ChecksumCRC32"]) == (put["ETag"], put["ChecksumCRC32"])
        repo = gateway.repository
        assert repo.stat("main", "to").address == repo.stat("main", "from é+").address
        head = s3.head_object(Bucket=REPOSITORY, Key="main/to")
        assert (head["Metadata"], head["ContentType"], head["TagCount"]) == ({"a": "b"}, "text/plain", 1)

    def test_directives_replace_metadata_and_tags(self, s3: Any) -> None:
        key = {"Bucket": REPOSITORY, "Key": "main/directives"}
        put = s3.put_object(**key, Body=b"1", Metadata={"a": "b"}, Tagging="x=1")
        assert code_of(s3.copy_object, CopySource=key, **key) == ("InvalidRequest", 400)
        s3.copy_object(CopySource=key, **key, MetadataDirective="REPLACE", Metadata={"c": "d"}, ContentType="a/b")
        head = s3.head_object(**key, ChecksumMode="ENABLED")
        assert (head["Metadata"], head["ContentType"]) == ({"c": "d"}, "a/b")
        assert (head["ChecksumCRC32"], head["TagCount"]) == (put["ChecksumCRC32"], 1)
        s3.copy_object(CopySource=key, **key, TaggingDirective="REPLACE", Tagging="y=2&z=3")
        assert s3.get_object_tagging(**key)["TagSet"] == [{"Key": "y", "Value": "2"}, {"Key": "z", "Value": "3"}]

    @pytest.mark.parametrize("to", [REPOSITORY, OTHER])
    def test_conditions_on_the_source(self, s3: Any, to: str) -> None:
        source = {"Bucket": REPOSITORY, "Key": "main/source"}
        etag = s3.put_object(**source, Body=b"1")["ETag"]
        copy = {"CopySource": source, "Bucket": to, "Key": "main/conditional"}
        assert code_of(s3.copy_object, **copy, CopySourceIfMatch='"other"') == ("PreconditionFailed", 412)
        assert code_of(s3.copy_object, **copy, CopySourceIfNoneMatch=etag) == ("PreconditionFailed", 412)
        s3.copy_object(**copy, CopySourceIfMatch=etag)
        assert s3.get_object(Bucket=to, Key="main/conditional")["Body"].read() == b"1"

    def test_a_condition_holds_for_the_object_that_is_copied(
        self, gateway: ServedGateway, s3: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody replaces the source between the look at its ETag and the copy."""
        source = {"Bucket": REPOSITORY, "Key": "main/raced"}
        etag = s3.put_object(**source, Body=b"1")["ETag"]
        waiting = [b"2"]

        def check_then_replace(*arguments: Any, **options: Any) -> None:
            check_conditions(*arguments, **options)
            if waiting:
                gateway.repository.upload("main", "raced", waiting.pop())

        monkeypatch.setattr(object_copies, "check_conditions", check_then_replace)
        copy = {"CopySource": source, "Bucket": REPOSITORY, "Key": "main/raced-copy"}
        assert code_of(s3.copy_object, **copy, CopySourceIfMatch=etag) == ("PreconditionFailed", 412)
        assert not gateway.repository.stat_many("main", ["raced-copy"])

    def test_a_copy_between_repositories_has_its_own_data(self, gateway: ServedGateway, s3: Any) -> None:
        source = {"Bucket": REPOSITORY, "Key": "main/bytes"}
        s3.put_object(**source, Body=b"x" * (3 << 20), Metadata={"a": "b"})
        s3.copy_object(CopySource=source, Bucket=OTHER, Key="main/bytes")
        gateway.repository.delete("main", "bytes")
        assert s3.get_object(Bucket=OTHER, Key="main/bytes")["Body"].read() == b"x" * (3 << 20)
        entries = [gateway.lake.repository(name).context.objects.list("data/") for name in (REPOSITORY, OTHER)]
        assert all(len(list(each)) for each in entries)

    @pytest.mark.parametrize("to", [REPOSITORY, OTHER])
    def test_conditions_on_the_target(self, gateway: ServedGateway, s3: Any, to: str) -> None:
        source = {"Bucket": REPOSITORY, "Key": "main/source"}
        s3.put_object(**source, Body=b"1", Metadata={"a": "b"})
        copy = {"CopySource": source, "Bucket": to, "Key": f"main/once-in-{to}"}
        etag = s3.copy_object(**copy, IfNoneMatch="*")["CopyObjectResult"]["ETag"]
        for condition in ({"IfNoneMatch": "*"}, {"IfNoneMatch": etag}, {"IfMatch": '"other"'}):
            assert code_of(s3.copy_object, **copy, **condition) == ("PreconditionFailed", 412)
        missing = {**copy, "Key": "main/missing"}
        assert code_of(s3.copy_object, **missing, IfMatch=etag) == ("NoSuchKey", 404)
        s3.copy_object(**copy, IfMatch=etag, MetadataDirective="REPLACE", Metadata={"c": "d"})
        assert s3.head_object(Bucket=to, Key=copy["Key"])["Metadata"] == {"c": "d"}
        assert gateway.lake.repository(to).read("main", f"once-in-{to}") == b"1"

    def test_what_has_copied_bytes_names_their_sources(self, gateway: ServedGateway, s3: Any) -> None:
        """So a purge finds the rows of what it left, wherever their bytes went (decision 0186)."""
        source = {"Bucket": REPOSITORY, "Key": "main/a"}
        s3.put_object(**source, Body=b"1")
        steps: list[dict[str, Any]] = [
            {"IfNoneMatch": "*"},
            {"ChecksumAlgorithm": "SHA1"},
            {"MetadataDirective": "REPLACE", "Metadata": {"c": "d"}},
        ]
        for name, options in zip("bcd", steps, strict=True):
            s3.copy_object(CopySource=source, Bucket=REPOSITORY, Key=f"main/{name}", **options)
            source = {"Bucket": REPOSITORY, "Key": f"main/{name}"}
        a, b, c, d = [gateway.repository.stat("main", name) for name in "abcd"]
        assert [sorted(sources_of_copy(stored_entry(each))) for each in (a, b, c)] == [
            sorted(each.address for each in entries) for entries in ([a], [a, b], [a, b, c])
        ]
        assert sources_of_copy(stored_entry(d)) == sources_of_copy(stored_entry(c))  # by reference

    def test_a_target_that_is_taken_while_it_is_copied(
        self, gateway: ServedGateway, s3: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = {"Bucket": REPOSITORY, "Key": "main/source"}
        etag = s3.put_object(**source, Body=b"1")["ETag"]
        key = {"Bucket": REPOSITORY, "Key": "main/taken"}

        def check_then_take(*arguments: Any, **options: Any) -> None:
            check_conditions(*arguments, **options)
            gateway.repository.upload("main", "taken", b"faster")

        monkeypatch.setattr(object_copies, "check_conditions", check_then_take)
        assert code_of(s3.copy_object, CopySource=source, **key, IfNoneMatch="*") == ("PreconditionFailed", 412)
        etag = s3.head_object(**key)["ETag"]
        assert code_of(s3.copy_object, CopySource=source, **key, IfMatch=etag) == ("PreconditionFailed", 412)
        assert gateway.repository.read("main", "taken") == b"faster"

    @pytest.mark.parametrize("to", [REPOSITORY, OTHER])
    def test_the_checksum_that_is_asked_for(self, gateway: ServedGateway, s3: Any, to: str) -> None:
        source = {"Bucket": REPOSITORY, "Key": "main/summed"}
        put = s3.put_object(**source, Body=b"1", ChecksumAlgorithm="SHA1", Metadata={"a": "b"})
        copy = {"CopySource": source, "Bucket": to, "Key": "main/summed-again"}
        same = s3.copy_object(**copy, ChecksumAlgorithm="SHA1")["CopyObjectResult"]
        assert same["ChecksumSHA1"] == put["ChecksumSHA1"]
        is_reference = gateway.repository.stat("main", "summed").address in {
            each.entry.address for each in gateway.lake.repository(to).list("main", prefix="summed-a") if each.entry
        }
        assert is_reference == (to == REPOSITORY)
        other = s3.copy_object(**copy, ChecksumAlgorithm="SHA256")["CopyObjectResult"]
        assert other["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(b"1").digest()).decode()
        head = s3.head_object(Bucket=to, Key="main/summed-again", ChecksumMode="ENABLED")
        assert (head["ChecksumSHA256"], head["ChecksumType"]) == (other["ChecksumSHA256"], "FULL_OBJECT")
        assert ("ChecksumSHA1" in head, head["Metadata"]) == (False, {"a": "b"})
        assert code_of(s3.copy_object, **copy, ChecksumAlgorithm="MD4") == ("InvalidRequest", 400)

    def test_a_checksum_is_added_to_what_is_there_then(
        self, gateway: ServedGateway, s3: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody replaces the object while it is copied onto itself."""
        key = {"Bucket": REPOSITORY, "Key": "main/onto-itself"}
        s3.put_object(**key, Body=b"1")
        waiting = [b"newer"]

        def check_then_replace(*arguments: Any, **options: Any) -> None:
            check_conditions(*arguments, **options)
            if waiting:
                gateway.repository.upload("main", "onto-itself", waiting.pop())

        monkeypatch.setattr(object_copies, "check_conditions", check_then_replace)
        s3.copy_object(CopySource=key, **key, ChecksumAlgorithm="SHA256", MetadataDirective="REPLACE", Metadata={})
        assert s3.get_object(**key)["Body"].read() == b"newer"

    def test_the_source_must_be_readable(self, gateway: ServedGateway, s3: Any) -> None:
        gateway.add_key("OTHERSONLY", Role.WRITER, (OTHER,))
        s3.put_object(Bucket=REPOSITORY, Key="main/secret", Body=b"1")
        copy = {"CopySource": {"Bucket": REPOSITORY, "Key": "main/secret"}, "Bucket": OTHER, "Key": "main/stolen"}
        assert code_of(gateway.client("OTHERSONLY").copy_object, **copy) == ("AccessDenied", 403)
        missing = {"CopySource": {"Bucket": REPOSITORY, "Key": "main/nothing"}, "Bucket": REPOSITORY, "Key": "main/x"}
        assert code_of(s3.copy_object, **missing) == ("NoSuchKey", 404)


def test_tags_are_kept_with_the_object(s3: Any) -> None:
    key = {"Bucket": REPOSITORY, "Key": "main/tagged"}
    s3.put_object(**key, Body=b"1")
    assert s3.get_object_tagging(**key)["TagSet"] == []
    tags = [{"Key": "é", "Value": "&"}, {"Key": "b", "Value": ""}]
    s3.put_object_tagging(**key, Tagging={"TagSet": tags})
    assert s3.get_object_tagging(**key)["TagSet"] == sorted(tags, key=lambda tag: tag["Key"])
    assert s3.get_object(**key)["TagCount"] == 2
    s3.delete_object_tagging(**key)
    assert s3.get_object_tagging(**key)["TagSet"] == []
    many = [{"Key": str(number), "Value": ""} for number in range(11)]
    assert code_of(s3.put_object_tagging, **key, Tagging={"TagSet": many}) == ("InvalidTag", 400)
    assert code_of(s3.get_object_tagging, Bucket=REPOSITORY, Key="main/none") == ("NoSuchKey", 404)


@pytest.mark.parametrize("change", ["put_object_tagging", "copy_object"])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_change_of_tags_or_metadata_undoes_nothing(
    gateway: ServedGateway,
    s3: Any,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    is_deleted: bool,
    is_committed: bool,
) -> None:
    """Somebody replaces or deletes the object after its entry was read, and before the changed entry is written."""
    repo = gateway.repository
    path = f"changed-{change}-{is_deleted}-{is_committed}"
    repo.upload("main", path, b"old")
    if is_committed:
        repo.commit("main", path)
    races = [repo.delete, lambda *key: repo.upload(*key, b"new")]
    race = races[:1] if is_deleted else races[1:]
    make_copy = copy_operation.make_copy

    def make_then_race(*arguments: Any) -> Any:
        entry = make_copy(*arguments)
        if race:
            race.pop()("main", path)
        return entry

    for module in (copy_operation, change_metadata_module):
        monkeypatch.setattr(module, "make_copy", make_then_race)
    key = {"Bucket": REPOSITORY, "Key": f"main/{path}"}
    arguments = {
        "put_object_tagging": {"Tagging": {"TagSet": [{"Key": "a", "Value": "b"}]}},
        "copy_object": {"CopySource": key, "TaggingDirective": "REPLACE", "Tagging": "a=b"},
    }[change]
    if is_deleted:
        assert code_of(getattr(s3, change), **key, **arguments) == ("NoSuchKey", 404)
        assert not repo.stat_many("main", [path])
        return
    getattr(s3, change)(**key, **arguments)
    assert s3.get_object_tagging(**key)["TagSet"] == [{"Key": "a", "Value": "b"}]
    assert repo.read("main", path) == b"new"


def test_what_is_known_of_the_parts_takes_no_room_from_tags(gateway: ServedGateway, s3: Any) -> None:
    content = ContentDescription("crc32", "x", part_checksums=("x" * 8000,))
    gateway.repository.upload_many("main", [Upload("joined", b"1", s3=lambda: S3Attributes(content))])
    key = {"Bucket": REPOSITORY, "Key": "main/joined"}
    tags = [{"Key": "a", "Value": "b" * 200}]
    s3.put_object_tagging(**key, Tagging={"TagSet": tags})
    assert s3.get_object_tagging(**key)["TagSet"] == tags
    s3.delete_object_tagging(**key)
    assert s3.get_object_tagging(**key)["TagSet"] == []
    assert stored_entry(gateway.repository.stat("main", "joined")).s3 == S3Attributes(content)


def test_many_keys_are_deleted_each_with_its_result(gateway: ServedGateway, s3: Any) -> None:
    repo = gateway.repository
    repo.commit("main", "before", allow_empty=True)
    repo.create_branch("second", source="main")
    repo.create_tag("t1", ref="main")
    for branch in ("main", "second"):
        repo.upload(branch, "gone/a", b"1")
    keys = ["main/gone/a", "second/gone/a", "main/gone/never", "t1/gone/a", "nowhere/x", "main/../x"]
    answer = s3.delete_objects(Bucket=REPOSITORY, Delete={"Objects": [{"Key": key} for key in keys]})
    assert {each["Key"] for each in answer["Deleted"]} == set(keys[:3])
    assert {each["Key"]: each["Code"] for each in answer["Errors"]} == {
        "t1/gone/a": "AccessDenied",
        "nowhere/x": "NoSuchKey",
        "main/../x": "InvalidArgument",
    }
    assert not repo.stat_many("main", ["gone/a"])
    assert not repo.stat_many("second", ["gone/a"])


def test_a_key_that_the_service_could_not_delete_is_logged(gateway: ServedGateway, s3: Any) -> None:
    gateway.repository.create_branch("broken", source="main")
    record = record_keys.branch(gateway.repository.context.repo, ids.branch_name("broken"))
    gateway.lake.kv.set(record, b"no record")
    with collecting_events() as events:
        answer = s3.delete_objects(Bucket=REPOSITORY, Delete={"Objects": [{"Key": "broken/a"}]})
    assert [each["Code"] for each in answer["Errors"]] == ["InternalError"]
    assert [each["status"] for each in events if each["event"] == "request_failed"] == [500]
    gateway.lake.kv.delete(record)


class TestBuckets:
    def test_a_pinned_bucket_has_keys_without_a_ref(self, gateway: ServedGateway, s3: Any) -> None:
        s3.put_object(Bucket="pinned", Key="in/it", Body=b"1")
        assert gateway.repository.read("main", "in/it") == b"1"
        assert s3.get_object(Bucket=REPOSITORY, Key="main/in/it")["Body"].read() == b"1"
        assert [each["Key"] for each in s3.list_objects_v2(Bucket="pinned", Prefix="in/")["Contents"]] == ["in/it"]

    def test_a_bucket_is_created_and_deleted_when_it_is_empty(self, gateway: ServedGateway, s3: Any) -> None:
        s3.create_bucket(Bucket="created")
        assert s3.create_bucket(Bucket="created")["Location"] == "/created"  # as in us-east-1
        s3.put_object(Bucket="created", Key="a", Body=b"1")
        assert gateway.lake.repository("created").read("main", "a") == b"1"
        assert code_of(s3.delete_bucket, Bucket="created") == ("BucketNotEmpty", 409)
        s3.delete_object(Bucket="created", Key="a")
        s3.delete_bucket(Bucket="created")
        assert code_of(s3.head_bucket, Bucket="created") == ("404", 404)

    @pytest.mark.parametrize("where", ["commit", "branch", "tag"])
    def test_what_a_commit_names_keeps_a_bucket(self, gateway: ServedGateway, s3: Any, where: str) -> None:
        name = f"kept-{where}"
        s3.create_bucket(Bucket=name)
        repo = gateway.lake.repository(name)
        if where == "branch":
            repo.create_branch("side", source="main")
            repo.upload("side", "a", b"1")
        else:
            repo.upload("main", "a", b"1")
            repo.commit("main", "one")
            repo.delete("main", "a")
            repo.commit("main", "two")
        if where == "tag":
            repo.create_tag("t", ref="main~1")
        assert code_of(s3.delete_bucket, Bucket=name) == ("BucketNotEmpty", 409)

    def test_a_repository_that_no_client_created_is_not_deleted(self, gateway: ServedGateway, s3: Any) -> None:
        gateway.lake.create_repository("elsewhere")
        assert code_of(s3.delete_bucket, Bucket="elsewhere") == ("AccessDenied", 403)
        assert gateway.lake.repository("elsewhere")

    def test_only_operators_create_buckets(self, gateway: ServedGateway, s3: Any) -> None:
        gateway.add_key("WRITER", Role.WRITER)
        assert code_of(gateway.client("WRITER").create_bucket, Bucket="created-2") == ("AccessDenied", 403)
        assert code_of(s3.delete_bucket, Bucket="pinned") == ("AccessDenied", 403)
        assert s3.create_bucket(Bucket="pinned")["Location"] == "/pinned"  # it is there already
        assert s3.get_bucket_location(Bucket=REPOSITORY)["LocationConstraint"] is None

    def test_a_key_of_one_repository_does_not_learn_which_other_names_are_taken(self, gateway: ServedGateway) -> None:
        gateway.lake.create_repository("taken").upload("main", "a", b"1")
        gateway.add_key("ONE", Role.OPERATOR, (REPOSITORY,))
        client = gateway.client("ONE")
        own = {"Bucket": REPOSITORY, "Key": "main/copied"}
        answers = [
            (
                code_of(client.head_bucket, Bucket=name),
                code_of(client.get_bucket_location, Bucket=name),
                code_of(client.list_objects_v2, Bucket=name),
                code_of(client.head_object, Bucket=name, Key="main/a"),
                code_of(client.get_object, Bucket=name, Key="main/a"),
                code_of(client.put_object, Bucket=name, Key="main/a", Body=b""),
                code_of(client.copy_object, **own, CopySource=f"{name}/main/a"),
                code_of(client.create_bucket, Bucket=name),
                code_of(client.delete_bucket, Bucket=name),
            )
            for name in ("taken", "free")
        ]
        assert answers[0] == answers[1]
        assert {status for _, status in answers[0]} == {403}
        assert code_of(gateway.client().head_bucket, Bucket="free") == ("404", 404)
