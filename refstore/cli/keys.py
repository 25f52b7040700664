"""`refstore keys`: who may call the service."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, open_lake
from refstore.cli.destroying import Yes, confirm
from refstore.cli.shapes import when
from refstore.errors import Invalid

app = typer.Typer(no_args_is_help=True)


@app.callback()
def keys() -> None:
    """Create, list and revoke the access keys of the service."""


@app.command("create")
def create(
    ctx: typer.Context,
    *,
    role: Annotated[str, typer.Option(metavar="ROLE", help="reader, writer or operator.")] = "writer",
    repository: Annotated[list[str] | None, typer.Option(metavar="REPO", help="Only for this one; may be given several times.")] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
) -> None:
    """Make an access key. Its secret is shown once, now.

    \b
    Example: refstore keys create --role reader --repository sales --description "the dashboard"
    """
    from refstore import access

    try:
        chosen = access.Role[role.upper()]
    except KeyError:
        raise Invalid(f"{role!r} is not a role; use reader, writer or operator") from None
    with open_lake(ctx, create=True) as lake:
        made = access.create(lake.kv, lake.clock, chosen, repositories=repository or [], description=description)
        emit(ctx, {"access_key_id": made.key.id, "secret_access_key": made.secret, "role": made.key.role.name.lower()})


@app.command("list")
def list_(ctx: typer.Context) -> None:
    """List the access keys, without their secrets.

    \b
    Example: refstore keys list --json
    """
    from refstore import access

    with open_lake(ctx) as lake:
        emit(
            ctx,
            (
                {
                    "access_key_id": key.id,
                    "role": key.role.name.lower(),
                    "repositories": list(key.repositories),
                    "description": key.description,
                    "created": when(key.created_ms),
                }
                for key in access.scan(lake.kv)
            ),
        )


@app.command("revoke")
def revoke(ctx: typer.Context, id_: Annotated[str, typer.Argument(metavar="ID", help="The access key's id.")], yes: Yes = False) -> None:
    """Take an access key away: its secret and all its tokens, within the few seconds of `api.key_seconds`.

    \b
    Example: refstore keys revoke RS0123456789ABCDEF01 --yes
    """
    from refstore import access

    with open_lake(ctx) as lake:
        confirm(ctx, f"access key {id_} will not open anything any more", yes=yes)
        access.revoke(lake.kv, id_)
        emit(ctx, {"access_key_id": id_, "revoked": True})
