"""The error tree: its codes are what machines match on, so they are append-only."""

from __future__ import annotations

import pytest

from refstore import errors
from refstore.cli.errors import exit_code
from refstore.errors import MergeConflict, MissingExtra, RefstoreError

CODES = {
    # (code, exit code of the command). A line is never changed and never removed; new errors get new lines.
    "RefstoreError": ("refstore", 1),
    "Invalid": ("invalid", 2),
    "LakeClosed": ("lake_closed", 2),
    "LakeReadOnly": ("lake_read_only", 2),
    "InvalidName": ("invalid_name", 2),
    "InvalidPath": ("invalid_path", 2),
    "InvalidToken": ("invalid_token", 2),
    "InvalidParts": ("invalid_parts", 2),
    "InvalidSettings": ("invalid_settings", 2),
    "DurationsDiffer": ("durations_differ", 2),
    "InvalidRules": ("invalid_rules", 2),
    "InvalidDocument": ("invalid_document", 2),
    "InvalidPurge": ("invalid_purge", 2),
    "NotFound": ("not_found", 3),
    "RepositoryNotFound": ("repository_not_found", 3),
    "BranchNotFound": ("branch_not_found", 3),
    "TagNotFound": ("tag_not_found", 3),
    "CommitNotFound": ("commit_not_found", 3),
    "ObjectNotFound": ("object_not_found", 3),
    "AddressNotFound": ("address_not_found", 3),
    "UploadNotFound": ("upload_not_found", 3),
    "Gone": ("gone", 4),
    "TransactionEnded": ("transaction_ended", 4),
    "Conflict": ("conflict", 4),
    "AlreadyExists": ("already_exists", 4),
    "PathChanged": ("path_changed", 4),
    "NothingToCommit": ("nothing_to_commit", 4),
    "DirtyBranch": ("dirty_branch", 4),
    "MergeConflict": ("merge_conflict", 4),
    "AlreadyLinked": ("already_linked", 4),
    "RunUnderWay": ("run_under_way", 4),
    "RunStopped": ("run_stopped", 4),
    "ConsentNeeded": ("consent_needed", 4),
    "PruneStopped": ("prune_stopped", 4),
    "Contention": ("contention", 5),
    "Unavailable": ("unavailable", 5),
    "KVUnavailable": ("kv_unavailable", 5),
    "KVRefused": ("kv_refused", 6),
    "OutcomeUnknown": ("outcome_unknown", 5),
    "ObjectsUnavailable": ("objects_unavailable", 5),
    "ObjectsRefused": ("objects_refused", 6),
    "ManifestBehind": ("manifest_behind", 4),
    "AuditUnavailable": ("audit_unavailable", 5),
    "AuditRefused": ("audit_refused", 6),
    "KVSettling": ("kv_settling", 5),
    "DeadlineExceeded": ("deadline_exceeded", 5),
    "StoreMisconfigured": ("store_misconfigured", 6),
    "WrongStore": ("wrong_store", 6),
    "ForeignNotAllowed": ("foreign_not_allowed", 6),
    "MissingExtra": ("missing_extra", 6),
    "Corrupt": ("corrupt", 6),
    "KVWentBack": ("kv_went_back", 6),
    "KVReconciling": ("kv_reconciling", 6),
    "CorruptRecord": ("corrupt_record", 6),
    "CorruptRange": ("corrupt_range", 6),
    "CorruptObject": ("corrupt_object", 6),
}


def tree() -> dict[str, type[RefstoreError]]:
    return {
        kind.__name__: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, RefstoreError)
    }


def test_codes_are_append_only() -> None:
    assert {name: (kind.code, exit_code(kind)) for name, kind in tree().items()} == CODES


def test_no_two_errors_share_a_code() -> None:
    codes = [kind.code for kind in tree().values()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("name", sorted(CODES))
def test_the_docstring_draws_every_error(name: str) -> None:
    assert f" {name} " in f"{errors.__doc__} ".replace("\n", " ")


@pytest.mark.parametrize("kind", tree().values(), ids=lambda kind: kind.__name__)
def test_what_may_be_made_again_exits_so(kind: type[RefstoreError]) -> None:
    """A script that retries on 5 retries what is retryable, and nothing else."""
    assert (exit_code(kind) == 5) == kind.retryable


@pytest.mark.parametrize("kind", tree().values(), ids=lambda kind: kind.__name__)
def test_what_may_have_landed_is_said_apart_from_what_may_be_made_again(kind: type[RefstoreError]) -> None:
    """The audit log calls an act `failed` only if nothing of it can have happened: a store may refuse its last step."""
    assert kind.may_have_landed == issubclass(kind, (errors.Unavailable, errors.Contention))
    assert kind.may_have_landed or not kind.retryable


@pytest.mark.parametrize("kind", tree().values(), ids=lambda kind: kind.__name__)
def test_what_callers_test_for_has_a_base_of_pythons(kind: type[RefstoreError]) -> None:
    assert issubclass(kind, ValueError) == issubclass(kind, errors.Invalid)
    assert issubclass(kind, LookupError) == issubclass(kind, errors.NotFound | errors.Gone)
    assert not issubclass(kind, OSError), "drivers and clients catch these, and would take it for one of theirs"


def test_an_error_of_an_application_takes_its_group() -> None:
    class Odd(errors.Corrupt):
        pass

    assert exit_code(Odd) == 6


def test_errors_carry_what_their_handlers_need() -> None:
    assert MergeConflict("two sides changed it", ("a", "b")).paths == ("a", "b")
    assert (
        str(MissingExtra("s3", "s3://"))
        == "s3:// needs an optional dependency; install it with: pip install 'refstore-lake[s3]'"
    )
