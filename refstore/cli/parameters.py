"""Declare the arguments and options that several commands take."""

from __future__ import annotations

from typing import Annotated, Final

import typer

LAST: Final = "last"
"""In the place of a run's or mark's id: the latest."""

Name = Annotated[str, typer.Argument(metavar="REPO", help="The repository.")]
Branch = Annotated[str, typer.Argument(metavar="BRANCH", help="The branch.")]
Ref = Annotated[str, typer.Argument(metavar="REF", help="A branch, tag or commit.")]
MaybeRef = Annotated[str, typer.Argument(metavar="REF", help="A branch, tag or commit; default: the default branch.")]
ObjectPath = Annotated[str, typer.Argument(metavar="PATH", help="The object's path.")]
MaybePrefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Only paths that start with this.")]
NamePrefix = Annotated[str, typer.Option("--prefix", metavar="PREFIX", help="Only names that start with this.")]
Meta = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Metadata; may be given several times.")]
Checksum = Annotated[str, typer.Option(metavar="TEXT", help="A checksum of its content.")]
Limit = Annotated[int, typer.Option("--limit", min=0, metavar="N", help="How many at most; 0: all.")]
Recursive = Annotated[
    bool, typer.Option("--recursive", "-r", help="PATH is a prefix: take everything that starts with it.")
]
Prefix = Annotated[str, typer.Option(metavar="PREFIX", help="Only paths that start with this.")]
Repositories = Annotated[
    list[str] | None,
    typer.Option("--repository", metavar="REPO", help="Only this repository; may be given several times."),
]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who sets the rules; default: your user name.")]

# ---- of commands that make a commit

Message = Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="The commit's message.")]
Committer = Annotated[
    str,
    typer.Option("--by", metavar="NAME", envvar="REFSTORE_COMMITTER", help="Who makes the commit.", show_envvar=True),
]
Date = Annotated[str | None, typer.Option(metavar="DATE", help="The commit's time, ISO 8601; default: now.")]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changes.")]

# ---- of commands that destroy

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted or changed, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

# ---- of commands that run on an engine

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="local: this machine; spark; or auto: Spark for large lakes, if it is installed. Default: auto.",
    ),
]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Use Spark, at local[4], spark://host:7077, yarn, k8s://...")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be given several times.")
]
