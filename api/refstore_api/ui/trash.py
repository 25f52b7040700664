"""The pages of the trash: what was lost and can be restored, and the forms that restore it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from refstore.core.units import size_shown, sum_of_sizes
from refstore.errors import Invalid
from refstore.operations.restoring import RestoreOutcome, RestoreRequest, RestoreResult
from refstore.repository import Repository
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.service import ServiceOf
from refstore_api.ui import PATH
from refstore_api.ui.acts import Field, Question, ask, is_answer, say
from refstore_api.ui.forms import Form, read_form
from refstore_api.ui.rendering import render
from refstore_api.ui.sessions import ReaderSession, WriterSession

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/trash", route_class=EncodedNameRoute)

PAGE: Final = 100
FORM_BYTES_MAX: Final = 256 << 10
"""A page of addresses, each with its branch, URL-encoded."""
INPUTS: Final = ("item", "all", "branch", "to", "prefix")
"""What decides which objects are restored, and to where."""
SHOWN: Final = 20
"""How many objects that were not restored are named."""
_WORDS: Final = {
    RestoreOutcome.RESTORED: "restored",
    RestoreOutcome.UNCHANGED: "there already",
    RestoreOutcome.OLDER: "older versions, left alone",
    RestoreOutcome.CONFLICT: "not restored: the path was written since",
    RestoreOutcome.TOO_LATE: "not restored: too late",
}


@router.get("")
async def listing(
    request: Request,
    service: ServiceOf,
    session: ReaderSession,
    repository: str,
    branch: Annotated[str, Query(max_length=255)] = "",
    prefix: Annotated[str, Query(max_length=4096)] = "",
    after: Annotated[str, Query(max_length=4096)] = "",
) -> Response:
    def work(repo: Repository) -> Response:
        found = list(islice(repo.in_grace(branch=branch or None, prefix=prefix, after=after), PAGE + 1))
        return render(
            request,
            "trash.html",
            repository=repo.name,
            items=found[:PAGE],
            branch=branch,
            prefix=prefix,
            after=after,
            next_after=found[PAGE - 1].cursor if len(found) > PAGE else "",
            may_restore=session.may("writer", repo.name),
        )

    return await service.read(request, session.principal.key_id, repository, work)


@router.post("/restore")
async def restore(request: Request, service: ServiceOf, session: WriterSession, repository: str) -> Response:
    """Restore the chosen objects, or everything that a branch lost below a prefix: first as a dry run, then really."""
    form = await read_form(request, session, FORM_BYTES_MAX)
    confirmed = is_answer(request, session, form, INPUTS)
    results = await service.repository(repository, lambda repo: _restore(repo, form, dry_run=not confirmed))
    facts = _facts(results)
    failed = [f"{item.path or item.address}: {item.error}" for item in results if item.error is not None]
    back = f"/repositories/{repository}/trash"
    if confirmed:
        return say(request, "Restored", facts, repository=repository, back=back, failed=failed[:SHOWN])
    return ask(
        request,
        Question(
            title="Restore",
            lead="These objects get back the names that they lost. They are staged; commit the branch to keep them.",
            button="Restore",
            facts=facts,
            warnings=failed[:SHOWN],
            fields=[
                Field(
                    "checkbox",
                    "force",
                    "Replace what was written to these paths since",
                    "What is replaced goes to the trash.",
                )
            ]
            if any(item.outcome is RestoreOutcome.CONFLICT for item in results)
            else [],
            hidden={name: form.texts(name) for name in INPUTS},
            is_danger=False,
            cancel=back,
            allowed=any(item.outcome in (RestoreOutcome.RESTORED, RestoreOutcome.CONFLICT) for item in results),
        ),
        repository=repository,
    )


def _restore(repo: Repository, form: Form, *, dry_run: bool) -> Sequence[RestoreResult]:
    to, force = form.text("to"), form.flag("force")
    if form.flag("all"):
        branch = form.text("branch")
        if not branch:
            raise Invalid("say which branch lost the objects; set the branch in the filter, then restore them all")
        return repo.restore_many(to or branch, lost_on=branch, prefix=form.raw("prefix"), force=force, dry_run=dry_run)
    by_branch: dict[str, list[RestoreRequest]] = {}
    for item in form.texts("item"):
        address, _, branch = item.partition(" ")
        by_branch.setdefault(to or branch, []).append(RestoreRequest(address))
    if not by_branch:
        raise Invalid("no object was chosen; go back, and tick those that you want to restore")
    return [
        result
        for branch, requests in by_branch.items()
        for result in repo.restore_each(branch, requests, force=force, dry_run=dry_run)
    ]


def _facts(results: Sequence[RestoreResult]) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for outcome, words in _WORDS.items():
        chosen = [item for item in results if item.outcome is outcome]
        size_bytes = sum_of_sizes(item.entry.size_bytes for item in chosen if item.entry is not None)
        if chosen:
            facts.append((words.capitalize(), f"{len(chosen):,} objects, {size_shown(size_bytes)}"))
    return facts or [("Restored", "nothing")]
