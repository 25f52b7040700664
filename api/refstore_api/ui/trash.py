"""The pages of the trash: what was lost and can be restored, and the forms that restore it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final, NamedTuple
from urllib.parse import unquote

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core.clock import to_ms
from refstore.core.units import format_size, sum_sizes
from refstore.errors import Invalid
from refstore.operations.restore import RestoreOutcome, RestoreRequest, RestoreResult
from refstore.repository import Repository
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.forms import (
    SHOWN_DIGEST,
    Confirmation,
    ConfirmationField,
    FormFields,
    is_answer,
    make_digest,
    read_form,
    show_result,
)
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.sessions import ReaderSession, WriterSession

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/trash", route_class=EncodedNameRoute)

PAGE: Final = 100
FORM_BYTES_MAX: Final = 640 << 10
"""A page of addresses, each with its branch and path, URL-encoded."""
OBJECTS_MAX: Final = 1000
"""How many objects one act restores: its page names each of them."""
INPUTS: Final = ("item", "all", "branch", "to", "prefix")
"""What decides which objects are restored, and to where."""
SHOWN_MAX: Final = 20
"""How many objects that were not restored are named."""
_WORDS: Final = {
    RestoreOutcome.RESTORED: "restored",
    RestoreOutcome.UNCHANGED: "there already",
    RestoreOutcome.OLDER: "older versions, left alone",
    RestoreOutcome.CONFLICT: "not restored: the path was written since",
    RestoreOutcome.TOO_LATE: "not restored: too late",
}


@router.get("")
async def list_trash(
    session: ReaderSession,
    branch: Annotated[str, Query(max_length=255)] = "",
    prefix: Annotated[str, Query(max_length=4096)] = "",
    after: Annotated[str, Query(max_length=4096)] = "",
    chosen: bool = False,
) -> Response:
    def work(repo: Repository) -> Response:
        found = list(islice(repo.list_trash(branch=branch or None, prefix=prefix, after=after), PAGE + 1))
        return session.render(
            "trash.html",
            items=sorted(found[:PAGE], key=lambda item: (item.branch, item.path, -to_ms(item.since))),
            chosen=chosen,
            page_size=PAGE,
            branch=branch,
            prefix=prefix,
            after=after,
            next_after=found[PAGE - 1].cursor if len(found) > PAGE else "",
            may_restore=session.has_role("writer", repo.name),
        )

    return await session.read(work)


@router.post("/restore")
async def restore(session: WriterSession) -> Response:
    """Restore the chosen objects, or everything that a branch lost below a prefix: first as a dry run, then really.

    What is restored are the objects that the page of the dry run named. If others have been lost meanwhile, or some are
    not what they were, that page is shown once more.
    """
    form = await read_form(session, FORM_BYTES_MAX)
    is_confirmed = is_answer(session, form, (*INPUTS, SHOWN_DIGEST))
    back = f"{session.home}/trash"

    def work(repo: Repository) -> tuple[_RestorePlan, list[RestoreResult] | None]:
        plan = _make_plan(repo, form)
        if not is_confirmed or plan.digest != form.raw(SHOWN_DIGEST):
            return plan, None
        return plan, plan.carry_out(repo, force=form.is_checked("force"))

    plan, results = await session.run(work)
    if results is not None:
        facts = _facts([*results, *plan.unrestorable], plan.remaining)
        return show_result(session, "Restored", facts, back=back, failed=_failures(results))
    would = [*(each.result for each in plan.objects), *plan.unrestorable]
    force = ConfirmationField(
        "checkbox", "force", "Replace what was written to these paths since", "What is replaced goes to the trash."
    )
    return Confirmation(
        title="Restore",
        lead="These objects get back the names that they lost. They are staged; commit the branch to keep them.",
        button="Restore",
        facts=_facts(would, plan.remaining),
        columns=("Path", "To branch", "What happens", "Size"),
        items=[each.row for each in plan.objects],
        warnings=[
            *(["The trash has changed since this page was shown. Look at it again."] if is_confirmed else []),
            *_failures(would),
        ],
        fields=[force] if any(each.result.outcome is RestoreOutcome.CONFLICT for each in plan.objects) else [],
        hidden_fields={**{name: form.texts(name) for name in INPUTS}, SHOWN_DIGEST: plan.digest},
        is_danger=False,
        cancel=back,
        is_allowed=bool(plan.objects),
    ).ask(session)


class _PlannedObject(NamedTuple):
    """An object that the act restores, or would restore if it may replace what is at its path."""

    branch: str
    """The branch that gets it."""
    result: RestoreResult
    """Of the dry run."""

    @property
    def row(self) -> tuple[str, str, str, str]:
        size = format_size(self.result.entry.size_bytes) if self.result.entry is not None else ""
        return self.result.path, self.branch, _WORDS[self.result.outcome], size


class _RestorePlan(NamedTuple):
    """What the act would do now."""

    objects: Sequence[_PlannedObject]
    unrestorable: Sequence[RestoreResult]
    """What is not restored in any case."""
    remaining: int
    """How many more could be restored; one act names at most `OBJECTS_MAX`."""

    @property
    def digest(self) -> str:
        return make_digest(
            [(each.branch, each.result.path, each.result.address, each.result.outcome.value) for each in self.objects]
        )

    def carry_out(self, repo: Repository, *, force: bool) -> list[RestoreResult]:
        """Restore these objects, each to the path that was shown."""
        by_branch: dict[str, list[RestoreRequest]] = {}
        for each in self.objects:
            by_branch.setdefault(each.branch, []).append(RestoreRequest(each.result.address, each.result.path))
        return [
            result
            for branch, requests in by_branch.items()
            for result in repo.restore_each(requests, to=branch, force=force)
        ]


def _make_plan(repo: Repository, form: FormFields) -> _RestorePlan:
    results = _dry_run(repo, form)
    able = (RestoreOutcome.RESTORED, RestoreOutcome.CONFLICT)
    objects = [each for each in results if each.result.outcome in able]
    objects.sort(key=lambda each: (each.branch, each.result.path))
    others = [each.result for each in results if each.result.outcome not in able]
    return _RestorePlan(objects[:OBJECTS_MAX], others, len(objects) - len(objects[:OBJECTS_MAX]))


def _dry_run(repo: Repository, form: FormFields) -> list[_PlannedObject]:
    to = form.text("to")
    if form.is_checked("all"):
        branch = form.text("branch")
        if not branch:
            raise Invalid("say which branch lost the objects; set the branch in the filter, then restore them all")
        prefix = form.raw("prefix").replace("\r\n", "\n")  # browsers send line ends so
        results = repo.restore_many(branch, to=to or branch, prefix=prefix, dry_run=True)
        return [_PlannedObject(to or branch, each) for each in results]
    by_branch: dict[str, list[RestoreRequest]] = {}
    for item in form.texts("item"):
        address, branch, path = [*item.split(" ", 2), "", ""][:3]
        by_branch.setdefault(to or branch, []).append(RestoreRequest(address, unquote(path)))
    if not by_branch:
        raise Invalid("no object was chosen; go back, and tick those that you want to restore")
    return [
        _PlannedObject(branch, result)
        for branch, requests in by_branch.items()
        for result in repo.restore_each(requests, to=branch, dry_run=True)
    ]


def _failures(results: Sequence[RestoreResult]) -> list[str]:
    return [f"{item.path or item.address}: {item.error}" for item in results if item.error is not None][:SHOWN_MAX]


def _facts(results: Sequence[RestoreResult], left: int) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for outcome, words in _WORDS.items():
        chosen = [item for item in results if item.outcome is outcome]
        size_bytes = sum_sizes(item.entry.size_bytes for item in chosen if item.entry is not None)
        if chosen:
            facts.append((words.capitalize(), f"{len(chosen):,} objects, {format_size(size_bytes)}"))
    if left:
        facts.append(("Left for the next time", f"{left:,} objects"))
    return facts or [("Restored", "nothing")]
