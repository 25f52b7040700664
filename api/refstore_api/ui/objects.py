"""The pages of a repository's objects: what a ref lists, and one object with its names, its history and `why`."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core.ids import is_own
from refstore.errors import RefstoreError
from refstore.operations.address_info import AddressInfo
from refstore.public_types import Entry
from refstore.repository import Repository
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.sessions import ReaderSession

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}", route_class=EncodedNameRoute)

PAGE: Final = 100
Ref = Annotated[str, Query(max_length=255)]
Path = Annotated[str, Query(max_length=4096)]


@router.get("/objects")
async def list_objects(session: ReaderSession, ref: Ref = "", prefix: Path = "", after: Path = "") -> Response:
    def work(repo: Repository) -> Response:
        name = ref or repo.default_branch
        page = repo.list_page(name, prefix=prefix, after=after, amount=PAGE, delimiter="/")
        folders = prefix.split("/")[:-1]
        return session.render(
            "objects.html",
            ref=name,
            prefix=prefix,
            folders=[(folder, "/".join(folders[: number + 1]) + "/") for number, folder in enumerate(folders)],
            items=page.results,
            next_after=page.next_after if page.has_more else "",
        )

    return await session.read(work)


@router.get("/object")
async def show(session: ReaderSession, ref: Ref, path: Path) -> Response:
    def work(repo: Repository) -> Response:
        found = repo.why_path(ref, path)
        names = _read_names(repo, found.now)
        return session.render("object.html", ref=ref, object_path=path, found=found, now=found.now, names=names)

    return await session.read(work)


@router.get("/address")
async def why(session: ReaderSession, address: Path) -> Response:
    """Explain a physical address."""
    return await session.read(
        lambda repo: session.render("address.html", address=address, why=repo.why(address, commits=True))
    )


def _read_names(repo: Repository, entry: Entry | None) -> AddressInfo | None:
    """Return the references to the object that is there now."""
    if entry is None or not is_own(entry.address):
        return None
    try:
        return repo.address(entry.address)
    except RefstoreError:  # it went meanwhile
        return None
