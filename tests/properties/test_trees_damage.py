"""Damage: a flipped bit, a missing end, a missing object, in anything a tree is made of. Always CorruptRange, never
wrong data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from refstore.core.ids import Address
from refstore.errors import CorruptRange
from refstore.objects.memory import MemoryObjects
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import object_names
from refstore.versioning.commits.ranges import CutRule
from refstore.versioning.commits.tree_merge import MergeStrategy, merge_changes
from refstore.versioning.commits.trees import Trees
from tests.kit.clock import FakeClock
from tests.kit.equality import equal_as_uploaded
from tests.kit.ids import CountingIds


def entry(number: int) -> StoredEntry:
    return StoredEntry(
        Address(f"data/2026112107/{number:026d}"),
        number,
        f"{number:064x}",
        number,
        {"k": "v"} if number % 2 else {},
        "text/plain",
    )


class Tree:
    """A small tree of several ranges, and every way to read each kind of its objects."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        written = self.fresh().apply("", [(f"p/{number:02d}", entry(number)) for number in range(20)])
        self.metarange, self.added = written.metarange, written.added_addresses_id
        self.range = self.fresh().ranges(self.metarange)[1]
        rows = self.fresh().addresses_of_range(self.range)
        self.inside = f"p/{int(rows[0][-2:]):02d}"
        """A path in that range."""

    def fresh(self) -> Trees:
        """Without anything cached."""
        cut = CutRule(rows_min=3, rows_more=3, rows_max=6)
        return Trees(self.objects, CountingIds("d"), FakeClock(), cut=cut, threads=0)

    @property
    def keys(self) -> dict[str, str]:
        return {
            "range": object_names.key(object_names.RANGES, self.range),
            "metarange": object_names.key(object_names.METARANGES, self.metarange),
            "added": object_names.key(object_names.ADDED_ADDRESSES, self.added),
        }

    def uses(self, kind: str) -> Iterator[Callable[[], object]]:
        trees, metarange, inside = self.fresh, self.metarange, self.inside
        if kind == "added":
            yield lambda: list(trees().read_added_addresses(self.added))
            return
        yield lambda: trees().get(metarange, inside)
        yield lambda: trees().scan(metarange)
        yield lambda: trees().apply(metarange, [(inside, None)])
        yield lambda: list(trees().diff("", metarange))
        yield lambda: list(trees().diff(metarange, ""))
        yield lambda: list(merge_changes(trees(), "", "", metarange, MergeStrategy.NONE, equal_as_uploaded))
        yield lambda: list(trees().addresses(metarange))
        if kind == "range":
            yield lambda: trees().addresses_of_range(self.range)
        else:
            yield lambda: trees().count(metarange)
            yield lambda: trees().size_bytes(metarange)
            yield lambda: trees().ranges(metarange)


KINDS = ["range", "metarange", "added"]


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


@pytest.mark.parametrize("kind", KINDS)
def test_every_use_works_on_what_is_whole(tree: Tree, kind: str) -> None:
    for use in tree.uses(kind):
        use()


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_is_noticed(tree: Tree, kind: str) -> None:
    key = tree.keys[kind]
    whole = tree.objects.read(key)
    first = next(tree.uses(kind))
    for at in range(len(whole)):
        for bits in (0x01, 0x80, 0xFF):
            tree.objects.put(key, whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :])
            with pytest.raises(CorruptRange):
                first()
    tree.objects.put(key, whole)
    first()


@pytest.mark.parametrize("kind", KINDS)
def test_every_use_notices_damage(tree: Tree, kind: str) -> None:
    key = tree.keys[kind]
    whole = tree.objects.read(key)
    for at in range(0, len(whole), 97):
        tree.objects.put(key, whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        for use in tree.uses(kind):
            with pytest.raises(CorruptRange):
                use()
    tree.objects.put(key, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_end_is_noticed_wherever_it_is_missing(tree: Tree, kind: str) -> None:
    key = tree.keys[kind]
    whole = tree.objects.read(key)
    first = next(tree.uses(kind))
    for size in range(len(whole)):
        tree.objects.put(key, whole[:size])
        with pytest.raises(CorruptRange):
            first()
    tree.objects.put(key, whole + b"\0")
    with pytest.raises(CorruptRange):
        first()
    tree.objects.put(key, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_object_is_named_with_what_to_do(tree: Tree, kind: str) -> None:
    key = tree.keys[kind]
    whole = tree.objects.read(key)
    tree.objects.delete_many([key])
    for use in tree.uses(kind):
        with pytest.raises(CorruptRange, match=r"not in the object store\); restore _refstore/.* from a backup"):
            use()
    tree.objects.put(key, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_another_sound_object_under_the_name_is_noticed(kind: str) -> None:
    """As after a restore that mixed up names."""
    one, other = Tree(), Tree()
    other.metarange = other.fresh().apply(other.metarange, [(other.inside, None)]).metarange
    written = other.fresh().apply("", [("q", entry(77))])
    sound = {
        "range": other.fresh().ranges(other.metarange)[-1],
        "metarange": other.metarange,
        "added": written.added_addresses_id,
    }
    folders = {
        "range": object_names.RANGES,
        "metarange": object_names.METARANGES,
        "added": object_names.ADDED_ADDRESSES,
    }
    one.objects.put(one.keys[kind], other.objects.read(object_names.key(folders[kind], sound[kind])))
    for use in one.uses(kind):
        with pytest.raises(CorruptRange):
            use()


def test_a_damaged_listing_gives_nothing_before_it_fails(tree: Tree) -> None:
    key = tree.keys["added"]
    whole = tree.objects.read(key)
    tree.objects.put(key, whole[:-30] + b"x" + whole[-29:])
    with pytest.raises(CorruptRange):
        next(tree.fresh().read_added_addresses(tree.added))
    tree.objects.put(key, whole)


@pytest.mark.parametrize(
    "bad", ["x", "../../etc/passwd", "0" * 64, f"{'0' * 64}.{'0' * 25}", f"{'0' * 64}.{'0' * 26}/../x", "\0"]
)
def test_what_is_no_id_leads_nowhere(tree: Tree, bad: str) -> None:
    for use in (
        lambda: tree.fresh().get(bad, "a"),
        lambda: list(tree.fresh().read_added_addresses(bad)),
        lambda: tree.fresh().addresses_of_range(bad),
        lambda: tree.fresh().apply(bad, []),
    ):
        with pytest.raises(CorruptRange, match="is not the id of"):
            use()


def test_what_a_damaged_tree_still_has_can_be_read(tree: Tree) -> None:
    key = tree.keys["range"]
    whole = tree.objects.read(key)
    tree.objects.put(key, whole[:-1])
    assert tree.fresh().get(tree.metarange, "p/00") == entry(0)
    tree.objects.put(key, whole)
