"""Rule 24 dropped from the real code, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.planting import Edit, Mutant

TRANSACTION = "refstore.operations.transaction"
CRASH = "transaction: finish (crash) | end of its lease (crash)"


def transactions() -> Iterator[Mutant]:
    yield Mutant(
        name="whoever merges does not renew the lease",
        rule="24",
        edits=(Edit(f"{TRANSACTION}:finish", "renew(ctx, begun.branch, begun.lease_ms)", "begun.lease_until_ms"),),
        caught_by=CRASH,
    )
    yield Mutant(
        name="a transaction is ended that was renewed since",
        rule="24",
        edits=(Edit(f"{TRANSACTION}:end", "close(name, opened,", "close(name, ctx.branches.read_open(name),"),),
        caught_by=CRASH,
    )
    yield Mutant(
        name="a transaction is ended while the operation that merges it may be under way",
        rule="24",
        edits=(Edit(f"{TRANSACTION}:has_run_out", "ctx.waits.operations_end_ms(until_ms)", "until_ms"),),
        caught_by="clock past its lease: transaction: finish | end",
    )
