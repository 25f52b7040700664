"""GetObjectTagging, PutObjectTagging and DeleteObjectTagging. Tags are kept in the object's entry on the branch.

To change them puts another entry in the place of the one that is there. No data moves.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

import msgspec
from starlette.responses import Response

from refstore.public_types import Entry, stored_entry
from refstore.repository import Repository
from refstore.service.access_keys import Role
from refstore_s3.conditions import check_writable
from refstore_s3.listings import XML
from refstore_s3.object_attributes import GivenAttributes, check_tags
from refstore_s3.object_bodies import receive_xml
from refstore_s3.object_reads import check_version, stat_object
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import S3Request
from refstore_s3.targets import Target
from refstore_s3.xml_documents import make_document

TAGGING_BYTES_MAX = 64 << 10


async def get_object_tagging(request: S3Request) -> Response:
    target = await request.find_target(Role.READER)
    check_version(request)
    _, entry = await stat_object(request, target)
    given = GivenAttributes.of_entry(entry)
    tags = [("Tag", [("Key", key), ("Value", value)]) for key, value in sorted(given.tags.items())]
    return Response(make_document("Tagging", [("TagSet", tags)]), media_type=XML)


async def put_object_tagging(request: S3Request) -> Response:
    target = await _find_writable(request)
    tags = await receive_xml(request, "Tagging", _read_tags, bytes_max=TAGGING_BYTES_MAX)
    await _set_tags(request, target, tags)
    return Response()


async def delete_object_tagging(request: S3Request) -> Response:
    await _set_tags(request, await _find_writable(request), {})
    return Response(status_code=204)


def _read_tags(root: Element) -> dict[str, str]:
    """Read a document of tags. Raises S3Error."""
    tags = root.findall("TagSet/Tag")
    if root.find("TagSet") is None or any(each.find("Key") is None or each.find("Value") is None for each in tags):
        raise S3Error("MalformedXML", "the document has no TagSet, or a Tag has no Key or no Value; give all of them")
    return check_tags([(each.findtext("Key") or "", each.findtext("Value") or "") for each in tags])


async def _find_writable(request: S3Request) -> Target:
    target = await request.find_target(Role.WRITER)
    check_version(request)
    await stat_object(request, target)
    return target


async def _set_tags(request: S3Request, target: Target, tags: dict[str, str]) -> None:
    def change(entry: Entry) -> Entry:
        stored = stored_entry(entry)
        given = GivenAttributes.of_entry(stored)._replace(tags=tags)
        given.check_size()
        return Entry(entry.path, msgspec.structs.replace(stored, s3=given.s3))

    def write(repo: Repository) -> None:
        check_writable(repo, target)
        repo.change_metadata(target.ref, target.path, change)

    await request.service.repository(target.repository, write)
