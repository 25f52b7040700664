"""`refstore keys`: who may call the service."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from refstore.cli.common import emit, open_lake
from refstore.cli.destroying import Yes, confirm
from refstore.cli.durations import duration_seconds
from refstore.cli.shapes import when
from refstore.errors import Invalid

app = typer.Typer(no_args_is_help=True)

EXPIRES_DAYS_MAX: Final = 3660

_Id = Annotated[str, typer.Argument(metavar="ID", help="The access key's id.")]


@app.callback()
def keys() -> None:
    """Create, list, rotate and revoke the access keys of the service."""


@app.command("create")
def create(
    ctx: typer.Context,
    *,
    role: Annotated[str, typer.Option(metavar="ROLE", help="reader, writer or operator.")] = "writer",
    repository: Annotated[list[str] | None, typer.Option(metavar="REPO", help="Only for this one; may be given several times.")] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="After how long it opens nothing: 12h, 30d. Left out: never.")
    ] = None,
) -> None:
    """Make an access key. Its secret is shown once, now.

    \b
    Example: refstore keys create --role reader --repository sales --description "the dashboard"
             refstore keys create --role writer --expires 30d --description "a migration"
    """
    from refstore import access

    try:
        chosen = access.Role[role.upper()]
    except KeyError:
        raise Invalid(f"{role!r} is not a role; use reader, writer or operator") from None
    seconds = duration_seconds("--expires", expires, days_max=EXPIRES_DAYS_MAX) if expires is not None else None
    with open_lake(ctx, create=True) as lake:
        expires_ms = lake.clock.now_ms() + int(seconds * 1000) if seconds is not None else 0
        made = access.create(lake.kv, lake.clock, chosen, repositories=repository or [], description=description, expires_ms=expires_ms)
        emit(
            ctx,
            {
                "access_key_id": made.key.id,
                "secret_access_key": made.secret,
                "role": made.key.role.name.lower(),
                "expires": when(made.key.expires_ms or None),
            },
        )


@app.command("list")
def list_(ctx: typer.Context) -> None:
    """List the access keys, without their secrets: what each may do, until when, and when it was used last (to the hour).

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
                    "expires": when(key.expires_ms or None),
                    "last_used": when(key.last_used_ms or None),
                    "old_secret_ends": when(key.old_secret_ends_ms or None),
                }
                for key in access.scan(lake.kv)
            ),
        )


@app.command("rotate")
def rotate(
    ctx: typer.Context,
    id_: _Id,
    *,
    overlap: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long the old secret goes on: 90s, 30m, 6h, 7d. Left out: 1d.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="End every older secret at once: it became known.")] = False,
    yes: Yes = False,
) -> None:
    """Make a new secret for an access key, and show it once, now. The old one goes on for the overlap, and then ends.

    With a secret end the tokens that it bought. To end the old one sooner: `refstore keys end-overlap`.

    \b
    Example: refstore keys rotate RS0123456789ABCDEF01 --overlap 7d
             refstore keys rotate RS0123456789ABCDEF01 --now --yes
    """
    from refstore import access

    if now and overlap is not None:
        raise Invalid("--now and --overlap contradict each other; give one of them")
    seconds = 0.0 if now else duration_seconds("--overlap", overlap or "1d")
    with open_lake(ctx) as lake:
        if now:
            confirm(ctx, f"the secrets that access key {id_} has will not open anything any more, nor will its tokens", yes=yes)
        made = access.rotate(lake.kv, lake.clock, id_, overlap_ms=int(seconds * 1000))
        emit(
            ctx,
            {"access_key_id": id_, "secret_access_key": made.secret, "old_secret_ends": when(made.key.old_secret_ends_ms)},
        )


@app.command("end-overlap")
def end_overlap(ctx: typer.Context, id_: _Id, yes: Yes = False) -> None:
    """End the old secret of a rotation now, and the tokens that it bought, within the few seconds of `api.key_seconds`.

    \b
    Example: refstore keys end-overlap RS0123456789ABCDEF01 --yes
    """
    from refstore import access

    with open_lake(ctx) as lake:
        confirm(ctx, f"the old secret of access key {id_} will not open anything any more", yes=yes)
        ended = access.end_overlap(lake.kv, lake.clock, id_)
        emit(ctx, {"access_key_id": id_, "old_secret_ends": when(ended.old_secret_ends_ms)})


@app.command("end-tokens")
def end_tokens(ctx: typer.Context, id_: _Id, yes: Yes = False) -> None:
    """End the bearer tokens that an access key was given so far, within the few seconds of `api.key_seconds`. Its secret goes on.

    \b
    Example: refstore keys end-tokens RS0123456789ABCDEF01 --yes
    """
    from refstore import access

    with open_lake(ctx) as lake:
        confirm(ctx, f"who holds a token of access key {id_} has to log in again", yes=yes)
        access.end_tokens(lake.kv, id_)
        emit(ctx, {"access_key_id": id_, "tokens_ended": True})


@app.command("revoke")
def revoke(ctx: typer.Context, id_: _Id, yes: Yes = False) -> None:
    """Take an access key away: its secret and all its tokens, within the few seconds of `api.key_seconds`.

    \b
    Example: refstore keys revoke RS0123456789ABCDEF01 --yes
    """
    from refstore import access

    with open_lake(ctx) as lake:
        confirm(ctx, f"access key {id_} will not open anything any more", yes=yes)
        access.revoke(lake.kv, id_)
        emit(ctx, {"access_key_id": id_, "revoked": True})
