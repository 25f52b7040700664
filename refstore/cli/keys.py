"""The commands `refstore keys`: manage the service's access keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Final, Literal

import typer

from refstore.cli.common import emit, open_lake, settings_of
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import Repositories, Yes
from refstore.cli.rows import format_when
from refstore.core.durations import parse_duration
from refstore.core.units import DAY_SECONDS
from refstore.errors import Invalid
from refstore.lake import Lake
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
    repositories: Repositories = None,
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
    seconds = parse_duration("--expires", expires, most=EXPIRES_DAYS_MAX * DAY_SECONDS) if expires is not None else None
    with open_lake(ctx, create=True) as lake:
        expires_ms = lake.clock.now_ms() + int(seconds * 1000) if seconds is not None else 0
        created = access_keys.create_key(
            lake,
            chosen_role,
            repositories=repositories or [],
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
    with open_lake(ctx, read_only=True) as lake:
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
    for_s3: Annotated[bool, typer.Option("--s3", help="Its secret for S3 clients, which is not its own.")] = False,
    overlap: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long the old secret stays valid: 90s, 30m, 6h, 7d. Default: 1d."),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="End every older secret at once, because it leaked.")] = False,
    yes: Yes = False,
) -> None:
    """Make a new secret for an access key, shown only this once. The old secret stays valid during the overlap.

    When a secret ends, the tokens that it bought end, too. To end it sooner: `refstore keys revoke ID --only`.

    With --s3 it makes the secret with which S3 clients use the key, also the first one. It is stored encrypted under
    the server key (`s3.secrets_key`).

    \b
    Example: refstore keys rotate RS0123456789ABCDEF01 --overlap 7d
             refstore keys rotate RS0123456789ABCDEF01 --now --yes
             refstore keys rotate RS0123456789ABCDEF01 --s3
    """
    if now and overlap is not None:
        raise Invalid("--now and --overlap contradict each other; give one of them")
    overlap_ms = 0 if now else int(parse_duration("--overlap", overlap or "1d") * 1000)
    settings = settings_of(ctx)
    with open_lake(ctx) as lake:
        if now:
            what = "S3 secrets" if for_s3 else "secrets and tokens"
            confirm(ctx, f"all present {what} of access key {id_} will stop working", yes=yes)
        answer: dict[str, object] = {"access_key_id": id_}
        if for_s3:
            cipher = s3_secrets.read_cipher(settings.s3.secrets_key, settings.data)
            if cipher is None:
                raise Invalid(
                    "S3 secrets are encrypted under a server key, and none is set; give this command and the service "
                    "the same REFSTORE_S3_SECRETS_KEY, made with: python3 -c 'import secrets; "
                    "print(secrets.token_hex(32))'"
                )
            rotated = s3_secrets.make_s3_secret(lake, cipher, id_, overlap_ms=overlap_ms)
            ends_ms = rotated.key.old_s3_secret_ends_ms
            answer |= {"s3_secret_access_key": rotated.secret, "old_s3_secret_ends": format_when(ends_ms or None)}
        else:
            rotated = access_keys.rotate_secret(lake, id_, overlap_ms=overlap_ms)
            ends_ms = rotated.key.old_secret_ends_ms
            answer |= {"secret_access_key": rotated.secret, "old_secret_ends": format_when(ends_ms)}
        emit(ctx, answer)


_PARTS: Final[Mapping[str, tuple[str, Callable[[Lake, str], object]]]] = {
    "": ("access key {}", access_keys.revoke_key),
    "tokens": ("every token that access key {} has bought", access_keys.end_tokens),
    "old-secret": ("the old secret of access key {}", access_keys.end_overlap),
    "s3-secrets": ("every S3 secret of access key {}", s3_secrets.end_s3_secrets),
    "old-s3-secret": ("the old S3 secret of access key {}", partial(s3_secrets.end_s3_secrets, only_old=True)),
}
"""What stops working, in words, and what ends it."""


@app.command("revoke")
def revoke(
    ctx: typer.Context,
    id_: _Id,
    only: Annotated[
        Literal["", "tokens", "old-secret", "s3-secrets", "old-s3-secret"],
        typer.Option(metavar="PART", help="tokens, old-secret, s3-secrets or old-s3-secret; the key stays."),
    ] = "",
    yes: Yes = False,
) -> None:
    """Revoke an access key: its secrets and tokens end within five seconds. Or end only a part of it, as fast.

    With its old secret the tokens end that it bought. With its S3 secrets the URLs end that they presigned; the key's
    own secret stays valid.

    \b
    Example: refstore keys revoke RS0123456789ABCDEF01 --yes
             refstore keys revoke RS0123456789ABCDEF01 --only old-secret --yes
    """
    what, end = _PARTS[only]
    with open_lake(ctx) as lake:
        confirm(ctx, f"{what.format(id_)} will stop working", yes=yes)
        end(lake, id_)
        emit(ctx, {"access_key_id": id_, "revoked": only or "the key"})
