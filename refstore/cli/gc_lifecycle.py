"""The command `refstore gc lifecycle`: the rule by which a bucket deletes what was tagged."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from typing import Annotated, Any

import typer

from refstore.cli.common import open_lake
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import Yes

MaybeBucket = Annotated[
    str | None, typer.Argument(metavar="[REPO]", help="The repository; or --bucket.", show_default=False)
]


def lifecycle(
    ctx: typer.Context,
    repo_name: MaybeBucket = None,
    *,
    bucket: Annotated[
        bool, typer.Option("--bucket", help="One rule for the whole bucket, which only this lake may use.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Put the rule into the bucket's configuration.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the configuration that --apply would write; change nothing."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Print or apply the lifecycle rule that deletes objects tagged by `--mode tag`, for one namespace or the bucket.

    The output is input for `aws s3api put-bucket-lifecycle-configuration`. That command replaces all rules of the
    bucket; --apply adds this rule to them. Read the warning if others share the bucket.

    \b
    Example: refstore gc lifecycle sales > lifecycle.json
             refstore gc lifecycle --bucket --apply
             refstore gc lifecycle --bucket --dry-run
    """
    from refstore_gc import bucket_lifecycle as rules

    if (repo_name is None) != bucket:
        ctx.fail("name one repository, or give --bucket")
    with open_lake(ctx) as lake, ExitStack() as stack:
        if repo_name is not None:
            store = lake.repository(repo_name).context.objects
            rule = rules.repository_rule(store)
        else:
            store = stack.enter_context(closing(rules.bucket_store(lake)))
            rule = rules.bucket_rule(versions=rules.deletes_versions(store))
            rules.check_bucket_is_ours(lake, store)
        typer.echo(rules.rule_warning(rule), err=True)
        made: dict[str, Any] = {"Rules": [rule.document()]}
        if dry_run:
            made = rules.bucket_configuration(store, rule)
        elif apply:
            confirm(ctx, "the bucket's lifecycle configuration will be changed", yes=yes)
            made = rules.apply_rule(store, rule)
        print(json.dumps(made, indent=2))
