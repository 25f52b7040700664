"""Rule 22, dropped from the real code part by part: the explorer must see what is lost, left over or shown then."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.planting import Edit, Mutant

LOCATIONS = "refstore.versioning.locations:Locations"
PLAN = "refstore_purge.purge_plan:plan_versions"
REFERENCES = "list(referenced_entries(ctx, [dataset.prefix for dataset in datasets]))"
CONTENTS = "refstore.operations.delete_contents:delete_contents"


def purged() -> Iterator[Mutant]:
    def mutant(name: str, caught_by: str, *edits: Edit) -> Mutant:
        return Mutant(name=name, rule="22", edits=edits, caught_by=caught_by)

    yield mutant(
        "nothing is announced",
        "purge; end of backups | read",
        Edit(f"{LOCATIONS}.announce", "if not self.are_announced():", "if False:"),
    )
    yield mutant(
        "a run does not look at the trash",
        "purge of all | delete branch | reap",
        Edit(PLAN, REFERENCES, "[]"),
    )
    yield mutant(
        "a run looks at the trash as its listing shows it",
        "purge of all | restore; delete | hard delete",
        Edit(
            PLAN,
            REFERENCES,
            "[\n"
            "        __import__('refstore.operations.referenced_entries', fromlist=['_']).ReferencedEntry(\n"
            "            'trash', each.path, each.entry, True\n"
            "        )\n"
            "        for each in repo.list_trash()\n"
            "        if each.entry\n"
            "    ]",
        ),
    )
    yield mutant(
        "a run looks at references behind every version",
        "purge of all | delete; restore; commit; reap",
        Edit(PLAN, "for each in referenced:", f"for each in {REFERENCES}:"),
    )
    yield mutant(
        "a content is published over whatever stands there",
        "purge; read what was purged | purge of other rows | end of backups",
        Edit(
            f"{LOCATIONS}.publish",
            "(item.intent_record.identity, encode(item.intent_record.location), each.location)",
            "(item.intent_record.identity, self._read_values([item.intent_record.identity])[0], each.location)",
        ),
    )
    yield mutant(
        "whoever deletes an identity deletes its own object only",
        "purge | reset; reap",
        Edit(
            CONTENTS,
            "if gone.isdisjoint(item.address for item in batch) or not ctx.locations.are_announced():",
            "if True:",
        ),
    )
    yield mutant(
        "what was not published stays",
        "purge | reset; reap",
        Edit("refstore_purge.content_replacement:delete_unpublished", "    if addresses:\n", "    if False:\n"),
    )
    yield mutant(
        "a backup is deleted while it can be restored",
        "purge; end of backups | restore of the content",
        Edit(
            f"{LOCATIONS}.retire",
            "kept = tuple(backup for backup in before.backups if backup.content.address not in ending)",
            "kept = before.backups",
        ),
    )
    yield mutant(
        "the offline look reads no locations",
        "purge | gc",
        Edit("refstore.gc_marks.live_set:_scan_locations", "if not ctx.locations.are_announced():", "if True:"),
    )
    yield mutant(
        "where content lies stands in the KV alone",
        "loss of locations: purge; end of backups",
        Edit("refstore_purge.content_replacement:keep_in_manifest", "    if published:\n", "    if False:\n"),
        Edit(
            "refstore_purge.purge_cleanup:_clean_up",
            "ctx.manifest.add(LocationsPublished(ctx.ids.new_id(ctx.clock.now_ms()), kept))",
            "pass",
        ),
    )
    yield mutant(
        "a restore is written over whatever stands there",
        "purge; end of backups | restore of the content",
        Edit(
            f"{LOCATIONS}.restore",
            "if self._kv.set_if(keys.location(self._repo, identity), value, encode(after)):",
            "if [self._kv.set(keys.location(self._repo, identity), encode(after))]:",
        ),
    )
    yield mutant(
        "entries are compared by the checksums of their uploads",
        "purge; the original again | end of backups",
        Edit(
            "refstore.operations.content_comparison:ContentComparison.are_equal",
            "if identities and self._are_announced():",
            "if False:",
        ),
    )
    yield mutant(
        "nothing is deleted with an identity that a run is about to replace",
        "purge | reset; reap",
        Edit(
            f"{LOCATIONS}.begin_deletion", "if record.current is None:", "if record.current is None or record.intent:"
        ),
    )
