"""The rules of races for one thing, each dropped from the real code: two get it, or what was written since goes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.planting import Edit, Mutant

PLACING = "refstore.operations.stage_entries:_place_one"
DELETING = "refstore.operations.delete:delete_if_entry"
CHANGING = "refstore.operations.change_metadata:change_metadata"
BRANCHES = "refstore.versioning.branches:Branches"

SAME_REFERENCE = Edit(PLACING, "            item = item.with_new_reference(ctx.ids.new_id(ctx.clock.now_ms()))\n", "")
NO_CHECK_OF_THE_TOKEN = Edit(
    PLACING, "if now.token == token:\n                if not is_placed", "if True:\n                if not is_placed"
)
OVER_ANYTHING = Edit(PLACING, "is_what_was_found(raw, current, token)", "True")
NO_LOOK_AT_THE_PATH = Edit(PLACING, "not is_own and not _fits(ctx, item, current)", "False")


def races() -> Iterator[Mutant]:
    yield from _for_free_paths()
    yield from _for_places_of_entries()
    yield from _for_moves_and_names()


def _for_free_paths() -> Iterator[Mutant]:
    yield Mutant(
        name="made again after a lost reply",
        rule="A lost reply",
        edits=(Edit(PLACING, ", once=True", ""),),
        caught_by="if absent: A | delete | hard delete, over a tombstone",
    )
    yield Mutant(
        name="placed again under the reference that it had, of a free path",
        rule="6",
        edits=(SAME_REFERENCE,),
        caught_by="if absent: A | delete | hard delete, over a tombstone",
    )
    yield Mutant(
        name="the token is not looked at behind the entry, of a free path",
        rule="2",
        edits=(NO_CHECK_OF_THE_TOKEN,),
        caught_by="if absent: A | commit | reap",
    )
    yield Mutant(
        name="what was written first is not looked for",
        rule="what somebody else wrote first stays",
        edits=(OVER_ANYTHING, NO_LOOK_AT_THE_PATH),
        caught_by="if absent: A | B",
    )
    yield Mutant(
        name="its own landed write is not recognised",
        rule="A lost reply",
        edits=(
            Edit(
                PLACING, "isinstance(record, StoredEntry) and record.address == entry.address", "raw == encode(entry)"
            ),
            Edit(PLACING, "current.entry.address == entry.address", "raw == encode(entry)"),
        ),
        caught_by="if absent: A, whose reply is lost",
    )


def _for_places_of_entries() -> Iterator[Mutant]:
    yield Mutant(
        name="placed again under the reference that it had, in the place of another",
        rule="6",
        edits=(SAME_REFERENCE,),
        caught_by="if entry: A | reset of the path | hard delete, over a commit",
    )
    yield Mutant(
        name="the token is not looked at behind the entry, in the place of another",
        rule="2",
        edits=(NO_CHECK_OF_THE_TOKEN,),
        caught_by="if entry: A | commit | reap",
    )
    yield Mutant(
        name="what came since is replaced",
        rule="20",
        edits=(
            OVER_ANYTHING,
            Edit(PLACING, "set_if(key, raw, encode(entry), once=True)", "set(key, encode(entry)) is None"),
        ),
        caught_by="if entry: A | B, one wins",
    )
    yield Mutant(
        name="the path is not compared with what was read",
        rule="20",
        edits=(NO_LOOK_AT_THE_PATH,),
        caught_by="if entry: A | overwrite | hard delete",
    )
    yield Mutant(
        name="a deletion does not compare the path with what was read",
        rule="20",
        edits=(Edit(DELETING, "(current is not None and not is_unchanged(ctx, current, entry))", "False"),),
        caught_by="if entry: D | A, one wins",
    )
    yield Mutant(
        name="a deletion does not look at the token behind the tombstone",
        rule="2",
        edits=(
            Edit(
                DELETING,
                "if is_deleted and branches.read_open(branch).record.token == record.token:",
                "if is_deleted:",
            ),
        ),
        caught_by="if entry: D | commit | reap",
    )
    yield Mutant(
        name="a change of the metadata replaces what came since",
        rule="20",
        edits=(
            Edit(
                CHANGING,
                "ctx.kv.set_if(key, replaced, encode(entry), once=True)",
                "ctx.kv.set(key, encode(entry)) is None",
            ),
        ),
        caught_by="if entry: M | overwrite, over a commit",
    )
    yield Mutant(
        name="a changed entry has no reference",
        rule="1",
        edits=(Edit(CHANGING, "current.token is not None and is_own(entry.address)", "False"),),
        caught_by="if entry: M | overwrite | hard delete",
    )


def _for_moves_and_names() -> Iterator[Mutant]:
    yield Mutant(
        name="a move that did not delete its source answers ok",
        rule="6",
        edits=(Edit("refstore.operations.move:move_many", "if path in errors:", "if False:"),),
        caught_by="moves: M | N",
    )
    yield Mutant(
        name="tombstones of moves are alike",
        rule="6",
        edits=(
            Edit(
                "refstore.operations.move:delete_sources",
                "Tombstone(ctx.ids.new_id(ctx.clock.now_ms()))",
                "Tombstone()",
            ),
        ),
        caught_by="moves: M | N",
    )
    yield Mutant(
        name="a branch looks for a tag before it reserves the name",
        rule="19",
        edits=(
            Edit(
                f"{BRANCHES}.create",
                "    if not self._kv.set_if(self.key(name), ABSENT, reserved)",
                "    tagged = self.has_tag(name)\n    if not self._kv.set_if(self.key(name), ABSENT, reserved)",
            ),
            Edit(f"{BRANCHES}.create", "if self.has_tag(name)", "if tagged"),
        ),
        caught_by="tag | branch",
    )
    yield Mutant(
        name="a tag looks for a branch before it only",
        rule="19",
        edits=(
            Edit(
                "refstore.operations.tag:create_tag",
                "        _check_no_branch(ctx, name)\n    except",
                "    except",
            ),
        ),
        caught_by="tag | branch",
    )
    yield Mutant(
        name="a refused tag stays",
        rule="19",
        edits=(Edit("refstore.operations.tag:create_tag", "ctx.kv.set_if(key, ours, ABSENT)", "pass"),),
        caught_by="tag | branch",
    )
    yield Mutant(
        name="a reserved name counts as free",
        rule="19",
        edits=(
            Edit(
                f"{BRANCHES}.has_branch",
                "record.retired_tokens or self._kv.set_if(key, raw, ABSENT)",
                "True",
            ),
        ),
        caught_by="tag | branch",
    )
