"""The pages of the retention rules: what holds, edit, validate, simulate before saving, and the history of changes."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import unquote

from fastapi import APIRouter
from starlette.responses import Response

from refstore.audit.audit_entries import AuditEntry
from refstore.audit.audit_reader import entries_newest_first
from refstore.core.json_documents import CHARACTERS_MAX
from refstore.errors import Conflict, ConsentNeeded, Invalid, InvalidRules
from refstore.operations import rules_document
from refstore.operations.rule_review import compare_with_current, review_history
from refstore.operations.rules_in_force import RetentionRules
from refstore.repository import Repository
from refstore.retention import rule_explanation
from refstore.retention.active_commits import compute_expiry
from refstore.retention.rule_explanation import BranchLine, ExpiryTotals
from refstore.retention.rules import Rules
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.forms import PROOF_FIELD, FormFields, is_answer, make_proof, read_form, show_result
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.sessions import OperatorSession, ReaderSession, UserSession

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/rules", route_class=EncodedNameRoute)

LINES: Final = 50
FORM_BYTES_MAX: Final = 4 << 20
"""Rules, URL-encoded."""
INPUTS: Final = ("document", "before")
"""What the rules are set to, and instead of which."""
CHANGES: Final = 50
CHANGES_READ: Final = 20_000
"""How many entries of the audit log are read for the history of the rules."""
EMPTY: Final = '{\n  "default_retention_days": 21,\n  "branches": [],\n  "grace_days": 7\n}\n'
_DAYS_HELP: Final = "docs/retention.md explains every field"


class RulesEffect(NamedTuple):
    """What rules mean for the history that there is."""

    totals: ExpiryTotals
    lines: list[BranchLine]
    unmarked_commits: int
    """Commits that the next run marks."""
    warnings: tuple[str, ...]


@router.get("")
async def show(session: ReaderSession) -> Response:
    def work(repo: Repository) -> Response:
        current = repo.retention()
        return session.render(
            "rules.html",
            current=current,
            effect=_compute_effect(repo, current.rules) if current is not None else None,
            may_edit=session.has_role("operator", repo.name),
        )

    return await session.read(work)


@router.get("/edit")
async def edit(session: OperatorSession) -> Response:
    def work(repo: Repository) -> Response:
        current = repo.retention()
        return _editor(session, current.document if current is not None else EMPTY, _rules_digest(current))

    return await session.read(work)


@router.post("/edit")
async def save(session: OperatorSession) -> Response:
    """Show what the edited rules would do; with the answer of that page, set them. Its fields `remove` name the legal
    holds and pins that go, in percent-encoding: browsers change ends of lines.
    """
    form = await read_form(session, FORM_BYTES_MAX)
    return await session.run(lambda repo: _save(session, repo, form))


@router.get("/history")
async def history(session: OperatorSession) -> Response:
    """Show who changed the rules, when, and to what, from the audit log."""
    lake = session.service.lake

    def work(repo: Repository) -> Response:
        changes: list[AuditEntry] = []
        for read in islice(entries_newest_first(lake.kv, lake.own_store), CHANGES_READ):
            act = read.entry.act if read.entry is not None else None
            if act is not None and act.repository == repo.name and act.action.startswith("rules."):
                if act.outcome != "begun" and read.entry is not None:
                    changes.append(read.entry)
                if len(changes) == CHANGES:
                    break
        return session.render("rules_history.html", changes=changes)

    return await session.read(work)


def _save(session: UserSession, repo: Repository, form: FormFields) -> Response:
    by = session.principal.key_id
    document, before = form.raw("document").replace("\r\n", "\n"), form.text("before")
    if len(document) > CHARACTERS_MAX:
        raise Invalid(f"the rules have more than {CHARACTERS_MAX} characters; use fewer rules")
    current = repo.retention()
    if _rules_digest(current) != before:
        raise Conflict(
            "somebody changed the rules while you edited them; load the editor again, and repeat your change"
        )
    try:
        parsed = rules_document.parse_rules(repo.context, document)
    except InvalidRules as error:
        return _editor(session, document, before, error)
    takes_latest_view = parsed.rules.allows_latest_view_expiry
    if takes_latest_view and not form.is_checked("allow_latest_view"):
        field = (
            "allow_deletion_from_latest_view" if parsed.rules.allow_deletion_from_latest_view else "keep_latest_view"
        )
        error = InvalidRules(
            "it lifts the protection of the latest view; open the advanced options, read what it does, and tick "
            "the box",
            place=field,
        )
        return _editor(session, document, before, error)
    missing: tuple[str, ...] = ()
    if is_answer(session, form, INPUTS):
        try:
            repo.set_retention(document, by=by, remove=[unquote(name) for name in form.texts("remove")])
        except ConsentNeeded as error:
            missing = error.names
        else:
            facts = [("Repository", repo.name), ("Set by", by)]
            return show_result(session, "The rules are set", facts, back=f"{session.home}/rules")
    return session.render(
        "rules_preview.html",
        status=409 if missing else 200,
        missing=missing,
        changes=compare_with_current(repo.context, parsed.rules),
        document=document,
        before=before,
        allow_latest_view=takes_latest_view,
        shows_go=parsed.rules.allow_deletion_from_latest_view,
        now=_compute_effect(repo, current.rules if current is not None else Rules()),
        then=_compute_effect(repo, parsed.rules),
        read_as=parsed.read_as,
        confirmed=PROOF_FIELD,
        proof=make_proof(session, {"document": document, "before": before}),
    )


def _editor(session: UserSession, document: str, before: str, error: InvalidRules | None = None) -> Response:
    status = 400 if error is not None else 200
    return session.render(
        "rules_edit.html", status=status, document=document, before=before, error=error, help=_DAYS_HELP
    )


def _compute_effect(repo: Repository, rules: Rules) -> RulesEffect:
    past, refs = rules_document.read_history(repo.context)
    expiry = compute_expiry(past, refs, rules, repo.context.clock.now_ms())
    found = review_history(repo.context, rules, expiry, refs)
    return RulesEffect(
        rule_explanation.expiry_totals(expiry),
        rule_explanation.branch_lines(expiry, refs, rules)[:LINES],
        found.unmarked_commits,
        found.warnings,
    )


def _rules_digest(current: RetentionRules | None) -> str:
    """Return what tells this version of the rules from others."""
    return f"{current.set_at.isoformat()}:{current.rules.digest()}" if current is not None else "none"
