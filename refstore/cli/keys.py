"""The commands `refstore keys`: manage the service's access keys."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from refstore.cli.common import emit, open_lake, settings_of
from refstore.cli.confirmation import confirm
from refstore.cli.option_values import duration_seconds
from refstore.cli.parameters import Yes
from refstore.cli.rows import format_when
from refstore.errors import Invalid
from refstore.service import access_keys, s3_secrets

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
    repository: Annotated[
        list[str] | None, typer.Option(metavar="REPO", help="Allow only this repository; may be given several times.")
    ] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What the key is for.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="When the key expires: 12h, 30d. Default: never.")
    ] = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REPO:BRANCH",
            help="Make this bucket the branch for S3 clients that use the key; may be given several times.",
        ),
    ] = None,
) -> None:
    """Create an access key. Its secret is shown only this once.

    \b
    Example: refstore keys create --role reader --repository sales --description "the dashboard"
             refstore keys create --role writer --expires 30d --description "a migration"
             refstore keys create --role writer --repository sales --bucket warehouse=sales:dev
    """
    try:
        chosen_role = access_keys.Role[role.upper()]
    except KeyError:
        raise Invalid(f"{role!r} is not a role; use reader, writer or operator") from None
    seconds = duration_seconds("--expires", expires, days_max=EXPIRES_DAYS_MAX) if expires is not None else None
    with open_lake(ctx, create=True) as lake:
        expires_ms = lake.clock.now_ms() + int(seconds * 1000) if seconds is not None else 0
        created = access_keys.create_key(
            lake,
            chosen_role,
            repositories=repository or [],
            description=description,
            expires_ms=expires_ms,
            buckets=bucket or [],
        )
        emit(
            ctx,
            {
                "access_key_id": created.key.id,
                "secret_access_key": created.secret,
                "role": created.key.role.name.lower(),
                "expires": format_when(created.key.expires_ms or None),
            },
        )


@app.command("list")
def list_(ctx: typer.Context) -> None:
    """List the access keys, without their secrets: roles, expiry, and the hour of the last use.

    \b
    Example: refstore keys list --json
    """
    with open_lake(ctx, only_read=True) as lake:
        emit(
            ctx,
            (
                {
                    "access_key_id": key.id,
                    "role": key.role.name.lower(),
                    "repositories": list(key.repositories),
                    "buckets": list(key.buckets),
                    "description": key.description,
                    "created": format_when(key.created_ms),
                    "expires": format_when(key.expires_ms or None),
                    "last_used": format_when(key.last_used_ms or None),
                    "old_secret_ends": format_when(key.old_secret_ends_ms or None),
                    "s3_secret_created": format_when(key.s3_secret_created_ms or None),
                    "old_s3_secret_ends": format_when(key.old_s3_secret_ends_ms or None),
                }
                for key in access_keys.scan_keys(lake.kv)
            ),
        )


@app.command("rotate")
def rotate(
    ctx: typer.Context,
    id_: _Id,
    *,
    overlap: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long the old secret stays valid: 90s, 30m, 6h, 7d. Default: 1d."),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="End every older secret at once, because it leaked.")] = False,
    yes: Yes = False,
) -> None:
    """Make a new secret for an access key, shown only this once. The old secret stays valid during the overlap.

    When a secret ends, the tokens that it bought end, too. To end it sooner: `refstore keys end-overlap`.

    \b
    Example: refstore keys rotate RS0123456789ABCDEF01 --overlap 7d
             refstore keys rotate RS0123456789ABCDEF01 --now --yes
    """
    if now and overlap is not None:
        raise Invalid("--now and --overlap contradict each other; give one of them")
    seconds = 0.0 if now else duration_seconds("--overlap", overlap or "1d")
    with open_lake(ctx) as lake:
        if now:
            confirm(
                ctx,
                f"all present secrets and tokens of access key {id_} will stop working",
                yes=yes,
            )
        rotated = access_keys.rotate_secret(lake, id_, overlap_ms=int(seconds * 1000))
        emit(
            ctx,
            {
                "access_key_id": id_,
                "secret_access_key": rotated.secret,
                "old_secret_ends": format_when(rotated.key.old_secret_ends_ms),
            },
        )


@app.command("end-overlap")
def end_overlap(ctx: typer.Context, id_: _Id, yes: Yes = False) -> None:
    """End the old secret of a rotation, and the tokens that it bought, within five seconds.

    \b
    Example: refstore keys end-overlap RS0123456789ABCDEF01 --yes
    """
    with open_lake(ctx) as lake:
        confirm(ctx, f"the old secret of access key {id_} will stop working", yes=yes)
        ended = access_keys.end_overlap(lake, id_)
        emit(ctx, {"access_key_id": id_, "old_secret_ends": format_when(ended.old_secret_ends_ms)})


@app.command("end-tokens")
def end_tokens(ctx: typer.Context, id_: _Id, yes: Yes = False) -> None:
    """End all present bearer tokens of an access key within five seconds. Its secret stays valid.

    \b
    Example: refstore keys end-tokens RS0123456789ABCDEF01 --yes
    """
    with open_lake(ctx) as lake:
        confirm(ctx, f"holders of a token of access key {id_} will have to log in again", yes=yes)
        access_keys.end_tokens(lake, id_)
        emit(ctx, {"access_key_id": id_, "tokens_ended": True})


@app.command("s3-secret")
def make_s3_secret(
    ctx: typer.Context,
    id_: _Id,
    *,
    overlap: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long the old S3 secret stays valid: 90s, 6h, 7d. Default: 1d."),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="End every older S3 secret at once, because it leaked.")] = False,
    yes: Yes = False,
) -> None:
    """Make a secret with which S3 clients use an access key, shown only this once. It is not the key's own secret.

    It is stored encrypted under the server key (`s3.secrets_key`). If the key has an S3 secret, that one stays valid
    during the overlap.

    \b
    Example: refstore keys s3-secret RS0123456789ABCDEF01
             refstore keys s3-secret RS0123456789ABCDEF01 --now --yes
    """
    if now and overlap is not None:
        raise Invalid("--now and --overlap contradict each other; give one of them")
    seconds = 0.0 if now else duration_seconds("--overlap", overlap or "1d")
    settings = settings_of(ctx)
    with open_lake(ctx) as lake:
        if now:
            confirm(ctx, f"all present S3 secrets of access key {id_} will stop working", yes=yes)
        cipher = s3_secrets.read_cipher(settings.s3.secrets_key, settings.data)
        if cipher is None:
            raise Invalid(
                "S3 secrets are encrypted under a server key, and none is set; give this command and the service the "
                "same REFSTORE_S3_SECRETS_KEY, made with: python3 -c 'import secrets; print(secrets.token_hex(32))'"
            )
        rotated = s3_secrets.make_s3_secret(lake, cipher, id_, overlap_ms=int(seconds * 1000))
        emit(
            ctx,
            {
                "access_key_id": id_,
                "s3_secret_access_key": rotated.secret,
                "old_s3_secret_ends": format_when(rotated.key.old_s3_secret_ends_ms or None),
            },
        )


@app.command("end-s3-secrets")
def end_s3_secrets(
    ctx: typer.Context,
    id_: _Id,
    *,
    old: Annotated[bool, typer.Option("--old", help="End only the S3 secret before the last rotation.")] = False,
    yes: Yes = False,
) -> None:
    """End the S3 secrets of an access key, and the URLs that they presigned, within five seconds.

    The key's own secret stays valid.

    \b
    Example: refstore keys end-s3-secrets RS0123456789ABCDEF01 --yes
             refstore keys end-s3-secrets RS0123456789ABCDEF01 --old --yes
    """
    with open_lake(ctx) as lake:
        what = "the old S3 secret" if old else "every S3 secret"
        confirm(ctx, f"{what} of access key {id_} will stop working", yes=yes)
        ended = s3_secrets.end_s3_secrets(lake, id_, only_old=old)
        emit(
            ctx,
            {"access_key_id": id_, "s3_secret_created": format_when(ended.s3_secret_created_ms or None)},
        )


@app.command("revoke")
def revoke(ctx: typer.Context, id_: _Id, yes: Yes = False) -> None:
    """Revoke an access key: its secrets and tokens end within five seconds.

    \b
    Example: refstore keys revoke RS0123456789ABCDEF01 --yes
    """
    with open_lake(ctx) as lake:
        confirm(ctx, f"access key {id_} will stop working", yes=yes)
        access_keys.revoke_key(lake, id_)
        emit(ctx, {"access_key_id": id_, "revoked": True})
