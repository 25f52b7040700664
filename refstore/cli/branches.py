"""The commands for branches and tags: create, list and delete them, and discard what is staged on a branch."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import Branch, DryRun, Name, NamePrefix, Recursive, Yes
from refstore.cli.rows import branch_row, change_row, format_when
from refstore.core.ids import branch_name
from refstore.operations import branch as branch_operation
from refstore.operations import tag as tag_operation
from refstore.repository import Repository

app = typer.Typer()
branch = typer.Typer(no_args_is_help=True, help="Create, list and delete branches.")
app.add_typer(branch, name="branch")
tag = typer.Typer(no_args_is_help=True, help="Create, list and delete tags. A tag names a commit and never moves.")
app.add_typer(tag, name="tag")

Tag = Annotated[str, typer.Argument(metavar="TAG", help="The tag.")]

COUNTED_MAX: Final = 10_000
"""How far staged changes are counted for a question, which must not read all that it asks about."""


@branch.command("create")
def create_branch(
    ctx: typer.Context,
    repo_name: Name,
    name: Branch,
    source: Annotated[
        str, typer.Option("--from", metavar="REF", help="Where it starts; default: the default branch.")
    ] = "",
    hidden: Annotated[bool, typer.Option("--hidden", help="Leave it out of listings by default.")] = False,
) -> None:
    """Create a branch at a ref's commit. Changes that are only staged there are not copied.

    \b
    Example: refstore branch create sales dev
             refstore branch create sales hotfix --from main~2
    """
    with repository_of(ctx, repo_name) as repo:
        head = repo.create_branch(name, source=source or repo.default_branch, hidden=hidden)
        emit(ctx, {"branch": name, "commit": head})


@branch.command("list")
def list_branches(
    ctx: typer.Context,
    repo_name: Name,
    prefix: NamePrefix = "",
    hidden: Annotated[bool, typer.Option("--hidden", help="Show hidden branches, too.")] = False,
) -> None:
    """List the branches, and whether something is staged on them.

    \b
    Example: refstore branch list sales
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        found = repo.context.branches.scan_open(prefix=prefix)
        emit(ctx, (branch_row(repo, name, record) for name, record in found if hidden or not record.is_hidden))


@branch.command("delete")
def delete_branch(ctx: typer.Context, repo_name: Name, name: Branch, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a branch and everything uncommitted on it. `refstore trash` lists what can still be restored.

    \b
    Example: refstore branch delete sales dev --dry-run
    """
    with repository_of(ctx, repo_name) as repo:
        branch_operation.check_deletable(repo.context, branch_name(name), default=repo.default_branch)
        if dry_run:
            emit(ctx, (change_row(change) for change in repo.diff(name)))
            return
        what = f"branch {name!r} and {_count_uncommitted(repo, name)} uncommitted changes on it will be deleted"
        confirm(ctx, what, yes=yes)
        repo.delete_branch(name)
        emit(ctx, {"branch": name, "deleted": True})


@app.command("reset")
def reset(
    ctx: typer.Context,
    repo_name: Name,
    name: Branch,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="Only this path; default: all.", show_default=False)
    ] = None,
    *,
    recursive: Recursive = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Discard what is staged on a branch: all of it, one path, or a prefix (-r). The committed version shows again.

    \b
    Example: refstore reset sales main --dry-run
             refstore reset sales main tmp/ -r --yes
    """
    if recursive and not path:
        ctx.fail("--recursive needs a PATH; leave it out to discard all that is staged")
    path, prefix = (None, path) if recursive else (path, None)
    with repository_of(ctx, repo_name) as repo:
        if dry_run:
            changes = repo.diff(name, prefix=path if path is not None else prefix or "")
            emit(ctx, (change_row(change) for change in changes if path is None or change.path == path))
            return
        if path is None and not yes:
            count = _count_uncommitted(repo, name, prefix or "")
            if count == "0":  # what is staged from now on was not asked about, so it stays
                emit(ctx, {"branch": name, "reset": "nothing was staged"})
                return
            below = f" below {prefix!r}" if prefix else ""
            confirm(ctx, f"{count} uncommitted changes{below} on branch {name!r} will be discarded", yes=yes)
        count = repo.reset(name, path=path, prefix=prefix)
        what = path if path is not None else prefix or "all that was staged"
        emit(ctx, {"branch": name, "reset": "nothing was staged" if count == 0 else what})


def _count_uncommitted(repo: Repository, name: str, prefix: str = "") -> str:
    changes = repo.context.staging.scan_merged(
        repo.context.branches.read_open(branch_name(name)).record.live_tokens, prefix=prefix
    )
    count = sum(1 for _ in islice(changes, COUNTED_MAX))
    return f"{count} or more" if count == COUNTED_MAX else str(count)


@tag.command("create")
def create_tag(
    ctx: typer.Context,
    repo_name: Name,
    name: Tag,
    ref: Annotated[str, typer.Option("--from", metavar="REF", help="What it names; default: the default branch.")] = "",
) -> None:
    """Tag a ref's commit.

    \b
    Example: refstore tag create sales v1 --from main~2
    """
    with repository_of(ctx, repo_name) as repo:
        emit(ctx, {"tag": name, "commit": repo.create_tag(name, ref=ref or repo.default_branch)})


@tag.command("list")
def list_tags(ctx: typer.Context, repo_name: Name, prefix: NamePrefix = "") -> None:
    """List the tags.

    \b
    Example: refstore tag list sales
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        found = tag_operation.scan_tags(repo.context, prefix=prefix, after="")
        emit(ctx, ({"tag": name, "commit": tag.commit, "created": format_when(tag.created_ms)} for name, tag in found))


@tag.command("delete")
def delete_tag(ctx: typer.Context, repo_name: Name, name: Tag, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a tag. Its commit is kept as long as another ref or the retention rules keep it.

    \b
    Example: refstore tag delete sales v1 --yes
    """
    with repository_of(ctx, repo_name) as repo:
        if dry_run:
            emit(ctx, [{"tag": name, "commit": repo.get_tag(name).commit_id}])
            return
        confirm(ctx, f"tag {name!r} will be deleted", yes=yes)
        repo.delete_tag(name)
        emit(ctx, {"tag": name, "deleted": True})
