"""ListBuckets, HeadBucket, GetBucketLocation, CreateBucket and DeleteBucket."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from refstore.errors import AlreadyExists, InvalidName, NotFound
from refstore.operations.version_entries import names_objects
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_http.namespace_choice import choose_namespace
from refstore_s3.listings import OWNER, XML, format_time, make_token, read_amount, read_token
from refstore_s3.object_bodies import receive_document
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.xml_documents import Content, make_document

CONFIGURATION_BYTES_MAX: Final = 64 << 10
BUCKETS_MAX: Final = 10_000


async def list_buckets(request: S3Request) -> Response:
    principal = request.principal
    request.check_role(Role.READER, None)
    prefix = request.query.get("prefix", "")
    amount = read_amount(request, "max-buckets", BUCKETS_MAX)
    token = request.query.get("continuation-token")
    after = "" if token is None else read_token(token)

    def read() -> bytes:
        rows = [
            row
            for row in request.gateway.buckets.scan(principal)
            if (not principal.repositories or row.bucket.repository in principal.repositories)
            and row.bucket.name.startswith(prefix)
            and row.bucket.name > after
        ]
        listed: list[tuple[str, Content]] = [
            ("Bucket", [("Name", row.bucket.name), ("CreationDate", format_time(row.created_ms))])
            for row in rows[:amount]
        ]
        content: list[tuple[str, Content]] = [("Owner", OWNER), ("Buckets", listed)]
        if len(rows) > amount > 0:
            content.append(("ContinuationToken", make_token(rows[amount - 1].bucket.name)))
        if prefix:
            content.append(("Prefix", prefix))
        return make_document("ListAllMyBucketsResult", content)

    return Response(await request.service.run(read), media_type=XML)


async def head_bucket(request: S3Request) -> Response:
    bucket = await request.find_bucket(Role.READER)
    await request.service.repository(bucket.repository, lambda _repo: None)
    return Response(headers={"x-amz-bucket-region": "us-east-1"})


async def get_bucket_location(request: S3Request) -> Response:
    """Answer with the region that every client begins with."""
    await head_bucket(request)
    return Response(make_document("LocationConstraint", ""), media_type=XML)


async def get_bucket_versioning(request: S3Request) -> Response:
    """Answer that S3's versions of keys are not kept: commits are what keeps earlier states."""
    await head_bucket(request)
    return Response(make_document("VersioningConfiguration", ""), media_type=XML)


async def create_bucket(request: S3Request) -> Response:
    """Create a repository that is a bucket pinned to its default branch. One that is there stays as it is, as in
    us-east-1: clients make sure of their bucket before they write.
    """
    location = {"Location": f"/{request.bucket_name}"}
    if await _is_there(request):
        return Response(headers=location)
    _check_setting(request)
    name, buckets = request.bucket_name, request.gateway.buckets
    request.check_role(Role.OPERATOR, None)
    if name.endswith("-"):
        raise S3Error("InvalidBucketName", f"{name[:80]!r} ends with a hyphen; end it with a letter or a digit")
    if buckets.is_set(name, request.principal):
        raise S3Error("BucketAlreadyExists", f"the settings or the key pin the bucket {name!r}; choose another name")
    await receive_document(request, CONFIGURATION_BYTES_MAX)  # a region, which says nothing here

    def create() -> None:
        lake = request.service.lake
        namespace = choose_namespace(lake, "", request.service.settings.namespaces)
        try:
            lake.create_repository(name, namespace=namespace, is_bucket=True)
        except AlreadyExists:
            raise S3Error("BucketAlreadyOwnedByYou", f"the bucket {name!r} was created at this moment") from None
        except InvalidName as error:
            raise S3Error("InvalidBucketName", str(error)) from None

    await request.service.run(create)
    buckets.forget(name)
    return Response(headers=location)


async def delete_bucket(request: S3Request) -> Response:
    """Delete the repository of a bucket that an S3 client created, if nothing in it names an object."""
    _check_setting(request)
    bucket = await request.find_bucket(Role.OPERATOR)
    buckets = request.gateway.buckets
    if buckets.is_set(bucket.name, request.principal):
        raise S3Error(
            "AccessDenied",
            f"the settings or the access key pin the bucket {bucket.name!r}; it is deleted as a repository",
        )

    def delete(repo: Repository) -> None:
        if not repo.record.is_bucket:
            raise S3Error("AccessDenied", f"no S3 client created {bucket.name!r}; it is deleted as a repository")
        if names_objects(repo.context):
            raise S3Error(
                "BucketNotEmpty", f"a commit or a branch of {bucket.name!r} names objects; they would be deleted"
            )
        request.service.lake.delete_repository(bucket.repository)

    await request.service.repository(bucket.repository, delete)
    buckets.forget(bucket.name)
    return Response(status_code=204)


async def _is_there(request: S3Request) -> bool:
    """Return whether the bucket is there. Raises Forbidden if the key may not write in it."""
    try:
        bucket = await request.find_bucket(Role.WRITER)
        await request.service.repository(bucket.repository, lambda _repo: None)
    except NotFound:
        return False
    return True


def _check_setting(request: S3Request) -> None:
    if not request.gateway.settings.create_buckets:
        raise S3Error(
            "NotImplemented",
            "S3 clients create and delete no buckets here; create a repository instead, or serve with "
            "--s3-create-buckets",
        )
