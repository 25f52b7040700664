"""Rule 23 dropped from the real code, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.planting import Edit, Mutant

COMPLETE = "refstore.operations.complete_upload"
MULTIPART = "refstore.operations.multipart"
STATES = "refstore.versioning.address_state"


def uploads_in_parts() -> Iterator[Mutant]:
    yield Mutant(
        name="a completion enters what it has not taken",
        rule="23",
        edits=(
            Edit(
                f"{COMPLETE}:_link",
                "    if not ctx.references.link([(name.address, record.token_id, reference)], [fixed])[0]:\n"
                "        return _find_completed(ctx, name, record.parts_digest)\n",
                "    ctx.references.link([(name.address, record.token_id, reference)], [fixed])\n",
            ),
        ),
        caught_by="multipart: complete | abort; hard delete | complete (replay)",
    )
    yield Mutant(
        name="a repeated completion links again",
        rule="23",
        edits=(
            Edit(
                f"{COMPLETE}:_find_completed",
                "            return registered.record.entry\n",
                "            token = ctx.branches.read_open(name.branch).record.token\n"
                "            placed = PlannedPlacement(name.path).with_entry(registered.record.entry)\n"
                "            place_each(ctx, name.branch, token, [placed])\n"
                "            return registered.record.entry\n",
            ),
        ),
        caught_by="multipart: complete | delete; hard delete | complete (replay)",
    )
    yield Mutant(
        name="the parts that are joined are not fixed",
        rule="23",
        edits=(
            Edit(
                f"{STATES}:fix_parts",
                'return msgspec.structs.replace(state, parts_digest=digest) if state.parts_digest in ("", digest) else '
                "None",
                "return msgspec.structs.replace(state, parts_digest=digest)",
            ),
        ),
        caught_by="multipart: complete | complete of other parts",
    )
    yield Mutant(
        name="parts are joined and linked at an address that is deleting",
        rule="23",
        edits=(
            Edit(
                f"{COMPLETE}:complete",
                "    if not isinstance(ctx.references.get_many([name.address])[0], Issued):\n",
                "    if ctx.references.get_many([name.address])[0] is None:\n",
            ),
            Edit(
                f"{STATES}:fix_parts",
                "    if not (isinstance",
                "    if isinstance(state, Deleting):\n        return state\n    if not (isinstance",
            ),
            Edit(
                f"{STATES}:link",
                "    return None",
                "    return Listed((reference,), now_ms) if isinstance(state, Deleting) else None",
            ),
        ),
        caught_by="multipart: complete | reset; reap; scrub",
    )
    yield Mutant(
        name="an upload is forgotten while parts may still be written",
        rule="23",
        edits=(
            Edit(
                "refstore_reaper.scrub:_end_upload",
                "        return False\n",
                "            return ctx.uploads.forget(upload._replace(raw=encode(closed)))\n        return False\n",
            ),
        ),
        caught_by="multipart: begin; part; complete (crash) | expire | scrub",
    )
    yield Mutant(
        name="nobody asks the store for pending uploads",
        rule="23",
        edits=(
            Edit(f"{MULTIPART}:end_upload", "    ctx.objects.abort_uploads(name.address)\n", ""),
            Edit(
                "refstore_reaper.deletion:delete_blobs",
                "    pending = _abort_uploads(objects, batch)",
                "    pending: dict[str, str] = {}",
            ),
        ),
        caught_by="multipart: begin; part; complete (crash) | expire | scrub, in the store",
    )
    yield Mutant(
        name="a part is written before its address is issued",
        rule="23",
        edits=(
            Edit(
                f"{MULTIPART}:_put_as_object",
                "        with unknown.tolerate():",
                '        ctx.objects.put(address, b"")\n        with unknown.tolerate():',
            ),
        ),
        caught_by="multipart: part (crash)",
    )
    yield Mutant(
        name="an upload is begun in the store before it is registered",
        rule="23",
        edits=(
            Edit(
                f"{MULTIPART}:begin",
                "        registered = ctx.uploads.register(name, record)\n",
                "        ctx.objects.begin_upload(name.address)\n"
                "        registered = ctx.uploads.register(name, record)\n",
            ),
        ),
        caught_by="multipart: begin; part; complete (crash) | expire | scrub, in the store",
    )
    yield Mutant(
        name="a completion that was refused is recorded as done",
        rule="23",
        edits=(Edit(f"{COMPLETE}:_link", "landed = None if refused else entry", "landed = entry"),),
        caught_by="multipart: complete if absent | complete (replay) | upload if absent",
    )
