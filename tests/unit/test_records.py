"""The records' bytes, version 1 (docs/formats.md). Later versions read them.

A record that gains a field keeps its line here, and gets a second one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.core.ids import Address, BranchName, CommitId, Path, RepositoryId, Token
from refstore.errors import CorruptRecord
from refstore.kv.base import ABSENT
from refstore.records.branch_records import (
    BranchRecord,
    ClosedBranch,
    CommittedTokens,
    DeletedToken,
    RetiredToken,
    StoredBranch,
    StoredTag,
    TokenRecord,
    decode_branch,
)
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import Record, decode, decode_optional, encode
from refstore.records.figure_records import Amount, DayAmount, GcFigures, ReaperFigures, RunProgress, StopRequest
from refstore.records.lake_records import (
    AccessKeyRecord,
    AuditHead,
    DurationsRecord,
    EncryptedSecret,
    FormerDurations,
    KvCopy,
    LakeRecord,
    Position,
    SecretHash,
    SharedDurations,
    WaitingAct,
)
from refstore.records.location_records import Backup, Content, Intent, Location, LocationsFlag, PurgeRecord
from refstore.records.mark_records import GcFlag, GcRun, NothingToDelete, StoredMark
from refstore.records.multipart_records import MultipartUpload, UploadedPart
from refstore.records.reaper_records import (
    BreakerState,
    DeletionCount,
    DueHintRecord,
    Heartbeat,
    Lease,
    SharedDueHintRecord,
    StampRecord,
)
from refstore.records.reference_records import (
    Deleting,
    Emptied,
    Issued,
    Listed,
    Reference,
    ReferenceRecord,
    decode_reference,
    decode_reference_many,
)
from refstore.records.repository_records import (
    ClearedRepository,
    ImportRecord,
    ImportSource,
    RepositoryRecord,
    RetentionRecord,
)
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from refstore.records.staging_records import StagedRecord, StoredEntry, Tombstone, decode_staged, decode_staged_many

ADDRESS = Address("data/2023111422/01j8x6w3vr0000000000000000")
TOKEN = Token("main:01j8x6w3vr0000000000000001")
OTHER = Token("main:01j8x6w3vr0000000000000002")
COMMIT = CommitId("c" * 64)
MAIN = BranchName("main")
PATH = Path("a/b")
REFERENCE = Reference(TOKEN, PATH)
ENTRY = StoredEntry(ADDRESS, 5, "ab12", 1_700_000_000_000)
ATTRIBUTES = S3Attributes(
    ContentDescription(
        "crc32", "AAAAAA==-3", True, "e1-3", ((2, 5), (1, 3)), ("AAAAAA==", "AAAAAQ==", "AAAAAg=="), (ADDRESS,)
    ),
    {"expires": "0", "cache-control": "no-store"},
    {"b": "2", "a": "1"},
)

RECORDS: dict[str, Record] = {
    "entry": ENTRY,
    "entry, full": StoredEntry(
        *(ADDRESS, 2**40, "ab12", 1_700_000_000_000, {"b": "2", "a": "1"}, "text/csv", "r1", "d41d8cd9"), ATTRIBUTES
    ),
    "tombstone": Tombstone(),
    "tombstone of a move": Tombstone("t1"),
    "listed": Listed((REFERENCE,), 1_700_000_000_000),
    "listed, full": Listed((REFERENCE, Reference(OTHER, Path("ä"), "r1")), 1_700_000_000_000),
    "emptied": Emptied(1_700_000_000_000, REFERENCE, "reset"),
    "emptied, full": Emptied(1_700_000_000_000, Reference(TOKEN, PATH, "r1"), "overwritten", ENTRY),
    "issued": Issued("t1", 1_700_000_000_000, MAIN, PATH),
    "issued, in parts": Issued("t1", 1_700_000_000_000, MAIN, PATH, True, "d1"),
    "multipart upload": MultipartUpload("t1", 1_700_000_000_000, 1_700_000_000_001),
    "multipart upload, full": MultipartUpload(
        *("t1", 1_700_000_000_000, 1_700_000_000_001, {"b": "2", "a": "1"}, "text/csv", "u1", "d1", 1_700_000_000_002),
        ENTRY,
        S3Attributes(ContentDescription("crc32", is_composite=True), {"expires": "0"}),
    ),
    "uploaded part": UploadedPart(5, "e1", 1_700_000_000_000),
    "uploaded part, full": UploadedPart(5, "e1", 1_700_000_000_000, {"crc32": "AAAAAA=="}, (ADDRESS,)),
    "deleting": Deleting(1_700_000_000_000, REFERENCE, "reset"),
    "deleting, full": Deleting(1_700_000_000_000, REFERENCE, "reset", 5),
    "branch": StoredBranch(COMMIT, TOKEN, (), (), "w1"),
    "branch, full": StoredBranch(
        COMMIT,
        TOKEN,
        (OTHER,),
        (RetiredToken(OTHER, COMMIT), RetiredToken(TOKEN, "deleted")),
        "w1",
        1_700_000_000_000,
        True,
        "b1",
        1_700_000_000_001,
    ),
    "closed branch": ClosedBranch((RetiredToken(TOKEN, "deleted"),), "w1"),
    "closed branch with an id": ClosedBranch((RetiredToken(TOKEN, "deleted"),), "w1", TOKEN),
    "deleted token": DeletedToken("branch-deleted", 1_700_000_000_000),
    "committed tokens": CommittedTokens((TOKEN, OTHER), 1_700_000_000_000),
    "token": TokenRecord(1_700_000_000_000),
    "token, full": TokenRecord(1_700_000_000_000, 1_700_000_000_001),
    "commit": StoredCommit((), "", "", (), 1_700_000_000_000, "", "Repository created"),
    "commit, full": StoredCommit(
        (COMMIT,),
        "m1",
        "a1",
        (TOKEN,),
        1_700_000_000_000,
        "me",
        "why",
        {"b": "2", "a": "1"},
        7,
        1_700_000_000_001,
        {"purge": "run-1"},
    ),
    "mark": StoredMark(1_700_000_000_000, 1_700_000_000_001),
    "mark, full": StoredMark(
        *(1_700_000_000_000, 1_700_000_000_001, "m1", 1_700_000_000_002, 1_700_000_000_003, ("logs/",), b"\x90"),
        1_700_000_000_004,
    ),
    "complete": NothingToDelete(1_700_000_000_000, "m1"),
    "gc flag": GcFlag("m1", 1_700_000_000_000, 1_700_000_000_001),
    "gc flag, full": GcFlag("m1", 1_700_000_000_000, 1_700_000_000_001, "host-1"),
    "gc run": GcRun("w1", "marking", 1_700_000_000_000, 5, 1_700_000_000_005, "d1"),
    "gc run, full": GcRun(
        *("w1", "swept", 1_700_000_000_000, 5, 1_700_000_000_005, "d1", ("m0",), 1, 2, {"b": 2, "a": 1}, "why?", "me"),
        *(3, 4, 5, {"deleted": 1}, "unmarked", 6),
    ),
    "tag": StoredTag(COMMIT),
    "tag, full": StoredTag(COMMIT, 1_700_000_000_000, "1"),
    "repository": RepositoryRecord(
        RepositoryId("lake.01j8x6w3vr0000000000000000"), "file:///x", MAIN, 1_700_000_000_000
    ),
    "repository, full": RepositoryRecord(
        *(RepositoryId("lake.01j8x6w3vr0000000000000000"), "file:///x", MAIN, 1_700_000_000_000),
        *({"b": "2", "a": "1"}, 60, 1_700_000_000_001, "w1", "local://x", True),
    ),
    "cleared repository": ClearedRepository(
        "file:///x", 1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002, ("m1", "m2"), 5, 6
    ),
    "retention": RetentionRecord('{"default_retention_days": 7}', 1_700_000_000_000, "me", "w1"),
    "retention, full": RetentionRecord(
        '{"default_retention_days": 7}',
        1_700_000_000_000,
        "me",
        "w1",
        {"main/logs/": "main"},
        "older than the audit log",
    ),
    "purge": PurgeRecord('{"whitelist": ["a.*"]}', 1_700_000_000_000, "me", "w1"),
    "location, gone": Location(None),
    "location, full": Location(
        Content(ADDRESS, 5, "ab12", "d41d8cd9", "run-1", 1_700_000_000_000),
        3,
        Intent(ADDRESS, "run-2", 1_700_000_000_001),
        (Backup(Content(ADDRESS, 6, "cd34"), 1_700_000_000_002, "run-1", is_trash=True),),
        (ADDRESS,),
        (ADDRESS,),
    ),
    "locations flag": LocationsFlag(),
    "reaper figures": ReaperFigures(),
    "reaper figures, full": ReaperFigures(
        ("w1", "w2"),
        1_700_000_000_000,
        12,
        Amount(1, 2),
        Amount(3, 4),
        Amount(5, 6),
        Amount(7, 8),
        4,
        stop_reason="because",
        kv_went_back=True,
        error="due: x",
        error_ms=1_700_000_000_002,
        refused_objects=6,
        reclaimed=(DayAmount("2026-11-24", 11, 12),),
        versions_warning="kept",
    ),
    "gc figures": GcFigures(),
    "gc figures, full": GcFigures(
        ("w1",),
        1_700_000_000_000,
        1_700_000_000_001,
        "m-1",
        Amount(1, 2),
        Amount(3, 4),
        5,
        "failed",
        1_700_000_000_002,
        (DayAmount("2026-11-24", 11, 12),),
        Amount(9, 10),
        1_700_000_000_001,
        2,
    ),
    "run progress": RunProgress("mark", "host:7", 1_700_000_000_000, 1_700_000_000_001),
    "run progress, full": RunProgress(
        "sweep", "host:7", 1_700_000_000_000, 1_700_000_000_001, "sweeping", 3, 8, 9_000, 1_700_000_009_001
    ),
    "stop request": StopRequest("ada", 1_700_000_000_000),
    "import": ImportRecord("w1", "running", MAIN, (), "m", "me", {}, False, 1_700_000_000_000, 1_700_000_000_001),
    "import, full": ImportRecord(
        write_id="w2",
        state="failed",
        branch=MAIN,
        sources=(ImportSource("s3://bucket/a/", "in/"), ImportSource("file:///x", "y", is_object=True)),
        message="m",
        committer="me",
        metadata={"b": "2", "a": "1"},
        allow_empty=True,
        began_ms=1_700_000_000_000,
        updated_ms=1_700_000_000_001,
        objects=7,
        skipped_objects=2,
        attempts=3,
        commit="c",
        error="it failed",
        error_code="invalid",
    ),
    "audit head": AuditHead(3, "ab" * 32, 1_700_000_000_000),
    "position": Position(7, 1_700_000_000_000),
    "audit waiting": WaitingAct(b"{}", 1_700_000_000_000),
    "audit waiting, claimed": WaitingAct(b"{}", 1_700_000_000_000, "c1", 1_700_000_000_001),
    "durations": DurationsRecord(SharedDurations(3600.0, 60.0, 60.0, 3600.0), "w1", 1_700_000_000_000),
    "durations, during a change": DurationsRecord(
        SharedDurations(7200.0, 30.5, 60.0, 900.0),
        "w2",
        1_700_000_000_001,
        (FormerDurations(SharedDurations(3600.0, 60.0, 60.0, 3600.0), 1_700_000_000_002),),
    ),
    "lake": LakeRecord("01j8x6w3vr0000000000000000"),
    "lake, confirmed": LakeRecord("01j8x6w3vr0000000000000000", is_confirmed=True),
    "copy of the KV": KvCopy("c1", "leaving", "redis://kv/0", 1_700_000_000_000),
    "copy of the KV, checked": KvCopy(
        "c1", "checked", "sqlite:///kv", 1_700_000_000_000, "repo/tags", "v1", "{}", "r1"
    ),
    "due": DueHintRecord(),
    "due, several": SharedDueHintRecord([Address("data/1"), Address("data/2")]),
    "lease": Lease("host-1", 1_700_000_000_000, "w1"),
    "heartbeat": Heartbeat("host", 7, 1_700_000_000_000, 1_700_000_000_001, 10.0),
    "heartbeat, full": Heartbeat("host", 7, 1_700_000_000_000, 1_700_000_000_001, 10.0, 1, 2, 3, 4, 5),
    "breaker": BreakerState("w1"),
    "breaker, full": BreakerState("w1", 1_700_000_000_000, "share", 600, 1000, 1_700_000_000_001, 50),
    "counter": DeletionCount(5),
    "stamp": StampRecord(1_700_000_000_000),
    "access key": AccessKeyRecord(b"salt", b"hash", 2, 1_700_000_000_000),
    "access key, full": AccessKeyRecord(
        *(b"salt", b"hash", 3, 1_700_000_000_000, ("sales",), "the dashboard", 1_700_000_000_001, 3),
        previous_secret=SecretHash(b"old", b"hash2", 1_700_000_000_002),
        s3_secrets=(EncryptedSecret(b"nonce", b"ciphertext", b"mark", 1_700_000_000_003),),
        write_id="w1",
        buckets=("warehouse=lake:main",),
    ),
}

WRITTEN: dict[str, str] = {
    "entry": (
        "9a01d92a646174612f323032333131313432322f30316a387836773376723030303030303030303030303030303005a461623132cf0000018bcfe5680080a0a0a0c0"
    ),
    "listed": ("930a9193bf6d61696e3a30316a3878367733767230303030303030303030303030303031a3612f62a0cf0000018bcfe56800"),
    "emptied": (
        "950bcf0000018bcfe5680093bf6d61696e3a30316a3878367733767230303030303030303030303030303031a3612f62a0a57265736574c0"
    ),
    "deleting": (
        "950dcf0000018bcfe5680093bf6d61696e3a30316a3878367733767230303030303030303030303030303031a3612f62a0a57265736574ff"
    ),
    "branch": (
        "9a14d94063636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363bf6d61696e3a30316a38783677337672303030303030303030303030303030319090a2773100c2a000"
    ),
    "tombstone": ("9202a0"),
    "tombstone of a move": ("9202a27431"),
    "listed, full": (
        "930a9293bf6d61696e3a30316a3878367733767230303030303030303030303030303031a3612f62a093bf6d61696e3a30316a3878367733767230303030303030303030303030303032a2c3a4a27231cf0000018bcfe56800"
    ),
    "emptied, full": (
        "950bcf0000018bcfe5680093bf6d61696e3a30316a3878367733767230303030303030303030303030303031a3612f62a27231ab6f7665727772697474656e9a01d92a646174612f323032333131313432322f30316a387836773376723030303030303030303030303030303005a461623132cf0000018bcfe5680080a0a0a0c0"
    ),
    "issued": ("970ca27431cf0000018bcfe56800a46d61696ea3612f62c2a0"),
    "deleting, full": (
        "950dcf0000018bcfe5680093bf6d61696e3a30316a3878367733767230303030303030303030303030303031a3612f62a0a5726573657405"
    ),
    "branch, full": (
        "9a14d94063636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363bf6d61696e3a30316a387836773376723030303030303030303030303030303191bf6d61696e3a30316a38783677337672303030303030303030303030303030329292bf6d61696e3a30316a3878367733767230303030303030303030303030303032d9406363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636392bf6d61696e3a30316a3878367733767230303030303030303030303030303031a764656c65746564a27731cf0000018bcfe56800c3a26231cf0000018bcfe56801"
    ),
    "closed branch": (
        "94159192bf6d61696e3a30316a3878367733767230303030303030303030303030303031a764656c65746564a27731a0"
    ),
    "deleted token": ("9316ae6272616e63682d64656c65746564cf0000018bcfe56800"),
    "committed tokens": (
        "931792bf6d61696e3a30316a3878367733767230303030303030303030303030303031bf6d61696e3a30316a3878367733767230303030303030303030303030303032cf0000018bcfe56800"
    ),
    "token": ("9318cf0000018bcfe5680000"),
    "token, full": ("9318cf0000018bcfe56800cf0000018bcfe56801"),
    "commit": ("9c1e90a0a090cf0000018bcfe56800a0b25265706f7369746f727920637265617465648000c080"),
    "commit, full": (
        "9c1e91d94063636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363a26d31a2613191bf6d61696e3a30316a3878367733767230303030303030303030303030303031cf0000018bcfe56800a26d65a377687982a161a131a162a13207cf0000018bcfe5680181a57075726765a572756e2d31"
    ),
    "mark": ("991fcf0000018bcfe56800cf0000018bcfe56801a0000090c40000"),
    "tag": (
        "9420d9406363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636300a0"
    ),
    "tag, full": (
        "9420d94063636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363cf0000018bcfe56800a131"
    ),
    "repository": (
        "9b28bf6c616b652e30316a3878367733767230303030303030303030303030303030a966696c653a2f2f2f78a46d61696ecf0000018bcfe5680080ff00a0a0c2"
    ),
    "retention": ("9729bd7b2264656661756c745f726574656e74696f6e5f64617973223a20377dcf0000018bcfe56800a26d65a2773180a0"),
    "retention, full": (
        "9729bd7b2264656661756c745f726574656e74696f6e5f64617973223a20377dcf0000018bcfe56800a26d65a2773181aa6d"
        "61696e2f6c6f67732fa46d61696eb86f6c646572207468616e20746865206175646974206c6f67"
    ),
    "purge": ("9554b67b2277686974656c697374223a205b22612e2a225d7dcf0000018bcfe56800a26d65a27731"),
    "location, gone": ("9755c000c0909090"),
    "location, full": (
        "975596d92a646174612f323032333131313432322f30316a387836773376723030303030303030303030303030303005a461623132a86434316438636439a572756e2d31cf0000018bcfe568000393d92a646174612f323032333131313432322f30316a3878367733767230303030303030303030303030303030a572756e2d32cf0000018bcfe56801919496d92a646174612f323032333131313432322f30316a387836773376723030303030303030303030303030303006a463643334a0a000cf0000018bcfe56802a572756e2d31c391d92a646174612f323032333131313432322f30316a387836773376723030303030303030303030303030303091d92a646174612f323032333131313432322f30316a3878367733767230303030303030303030303030303030"
    ),
    "locations flag": ("9156"),
    "reaper figures": ("dc00105790000092000092000092000092000000a0c2a0000090a0"),
    "reaper figures, full": (
        "dc00105792a27731a27732cf0000018bcfe568000c92010292030492050692070804a762656361757365c3a66475653a2078cf0000018bcfe56802069193aa323032362d31312d32340b0ca46b657074"
    ),
    "gc figures": ("9e58900000a092000092000000a000909200000000"),
    "gc figures, full": (
        "9e5891a27731cf0000018bcfe56800cf0000018bcfe56801a36d2d3192010292030405a66661696c6564cf0000018bcfe568029193aa323032362d31312d32340b0c92090acf0000018bcfe5680102"
    ),
    "run progress": ("9a59a46d61726ba6686f73743a37cf0000018bcfe56800cf0000018bcfe56801a00000ff00"),
    "run progress, full": (
        "9a59a57377656570a6686f73743a37cf0000018bcfe56800cf0000018bcfe56801a87377656570696e670308cd2328cf0000018bcfe58b29"
    ),
    "stop request": ("935aa3616461cf0000018bcfe56800"),
    "due": ("9132"),
    "lease": ("9433a6686f73742d31cf0000018bcfe56800a27731"),
    "heartbeat": ("9b34a4686f737407cf0000018bcfe56800cf0000018bcfe56801cb40240000000000000000000000"),
    "heartbeat, full": ("9b34a4686f737407cf0000018bcfe56800cf0000018bcfe56801cb40240000000000000102030405"),
    "breaker": ("9835a2773100a000000000"),
    "breaker, full": ("9835a27731cf0000018bcfe56800a57368617265cd0258cd03e8cf0000018bcfe5680132"),
    "counter": ("923605"),
    "stamp": ("9237cf0000018bcfe56800"),
    "complete": ("9324cf0000018bcfe56800a26d31"),
    "access key": ("9d3cc40473616c74c4046861736802cf0000018bcfe5680090a00000c090a090"),
    "cleared repository": (
        "982da966696c653a2f2f2f78cf0000018bcfe56800cf0000018bcfe56801cf0000018bcfe5680292a26d31a26d320506"
    ),
    "gc flag": ("9522a26d31cf0000018bcfe56800cf0000018bcfe56801a0"),
    "gc flag, full": ("9522a26d31cf0000018bcfe56800cf0000018bcfe56801a6686f73742d31"),
    "gc run": ("dc001323a27731a76d61726b696e67cf0000018bcfe5680005cf0000018bcfe56805a2643190000080a0a000000080a000"),
    "import": (
        "dc001146a27731a772756e6e696e67a46d61696e90a16da26d6580c2cf0000018bcfe56800cf0000018bcfe56801000001a0a0a0"
    ),
    "import, full": (
        "dc001146a27732a66661696c6564a46d61696e9293ae73333a2f2f6275636b65742f612fa3696e2fc293a966696c653a2f2f2f78a179c3a16da26d6582a161a131a162a132c3cf0000018bcfe56800cf0000018bcfe56801070203a163a96974206661696c6564a7696e76616c6964"
    ),
    "entry, full": (
        "9a01d92a646174612f323032333131313432322f30316a3878367733767230303030303030303030303030303030cf000001"
        "0000000000a461623132cf0000018bcfe5680082a161a131a162a132a8746578742f637376a27231a8643431643863643993"
        "97a56372633332aa4141414141413d3d2d33c3a465312d339292020592010393a84141414141413d3da84141414141513d3d"
        "a84141414141673d3d91d92a646174612f323032333131313432322f30316a38783677337672303030303030303030303030"
        "3030303082ad63616368652d636f6e74726f6ca86e6f2d73746f7265a765787069726573a13082a161a131a162a132"
    ),
    "repository, full": (
        "9b28bf6c616b652e30316a3878367733767230303030303030303030303030303030a966696c653a2f2f2f78a46d61696ecf"
        "0000018bcfe5680082a161a131a162a1323ccf0000018bcfe56801a27731a96c6f63616c3a2f2f78c3"
    ),
    "mark, full": (
        "991fcf0000018bcfe56800cf0000018bcfe56801a26d31cf0000018bcfe56802cf0000018bcfe5680391a56c6f67732fc401"
        "90cf0000018bcfe56804"
    ),
    "gc run, full": (
        "dc001323a27731a57377657074cf0000018bcfe5680005cf0000018bcfe56805a2643191a26d30010282a16101a16202a477"
        "68793fa26d6503040581a764656c6574656401a8756e6d61726b656406"
    ),
    "access key, full": (
        "9d3cc40473616c74c4046861736803cf0000018bcfe5680091a573616c6573ad7468652064617368626f617264cf0000018b"
        "cfe568010393c4036f6c64c4056861736832cf0000018bcfe568029195c4056e6f6e6365c40a63697068657274657874c404"
        "6d61726bcf0000018bcfe5680300a2773191b377617265686f7573653d6c616b653a6d61696e"
    ),
    "audit head": (
        "945003d94061626162616261626162616261626162616261626162616261626162616261626162616261626162616261626162616261626162616261626162616261626162cf0000018bcfe56800"
    ),
    "audit waiting": ("9551c4027b7dcf0000018bcfe56800a000"),
    "audit waiting, claimed": ("9551c4027b7dcf0000018bcfe56800a26331cf0000018bcfe56801"),
    "closed branch with an id": (
        "94159192bf6d61696e3a30316a3878367733767230303030303030303030303030303031a764656c65746564a27731bf6d61696e3a30316a3878367733767230303030303030303030303030303031"
    ),
    "lake": ("935cba30316a3878367733767230303030303030303030303030303030c2"),
    "lake, confirmed": ("935cba30316a3878367733767230303030303030303030303030303030c3"),
    "copy of the KV": ("995da26331a76c656176696e67ac72656469733a2f2f6b762f30cf0000018bcfe56800a0a0a0a0"),
    "copy of the KV, checked": (
        "995da26331a7636865636b6564ac73716c6974653a2f2f2f6b76cf0000018bcfe56800a97265706f2f74616773a27631a27b7da27231"
    ),
    "position": ("935307cf0000018bcfe56800"),
    "durations": (
        "955294cb40ac200000000000cb404e000000000000cb404e000000000000cb40ac200000000000a27731cf0000018bcfe5680090"
    ),
    "due, several": ("925b92a6646174612f31a6646174612f32"),
    "durations, during a change": (
        "955294cb40bc200000000000cb403e800000000000cb404e000000000000cb408c200000000000a27732cf0000018bcfe56801919294cb40ac200000000000cb404e000000000000cb404e000000000000cb40ac200000000000cf0000018bcfe56802"
    ),
    "issued, in parts": ("970ca27431cf0000018bcfe56800a46d61696ea3612f62c3a26431"),
    "multipart upload": ("9b64a27431cf0000018bcfe56800cf0000018bcfe5680180a0a0a000c0c0"),
    "multipart upload, full": (
        "9b64a27431cf0000018bcfe56800cf0000018bcfe5680182a161a131a162a132a8746578742f637376a27531a26431cf0000"
        "018bcfe568029a01d92a646174612f323032333131313432322f30316a387836773376723030303030303030303030303030"
        "303005a461623132cf0000018bcfe5680080a0a0a0c09397a56372633332a0c3a090909081a765787069726573a13080"
    ),
    "uploaded part": ("966505a26531cf0000018bcfe568008090"),
    "uploaded part, full": (
        "966505a26531cf0000018bcfe5680081a56372633332a84141414141413d3d91d92a646174612f323032333131313432322f"
        "30316a3878367733767230303030303030303030303030303030"
    ),
}


@pytest.mark.parametrize(("case", "written"), WRITTEN.items())
def test_what_was_written_is_read(case: str, written: str) -> None:
    record = RECORDS[case]
    assert decode(bytes.fromhex(written), type(record)) == record


@pytest.mark.parametrize("case", RECORDS)
def test_what_is_written_is_pinned(case: str) -> None:
    """Equal records have equal bytes, in every version that runs at once: `set_if` compares them."""
    assert encode(RECORDS[case]).hex() == WRITTEN[case]


def test_every_record_is_pinned_in_full_and_without_its_defaults() -> None:
    for kind in Record.__subclasses__():
        cases = [record for record in RECORDS.values() if type(record) is kind]
        assert cases, kind
        for field in msgspec.structs.fields(kind):
            if not field.required:
                default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
                values = [getattr(record, field.name) for record in cases]
                assert default in values, (kind, field.name)
                assert any(value != default for value in values), (kind, field.name)


def test_tags_are_never_reused() -> None:
    tags = [kind.__struct_config__.tag for kind in Record.__subclasses__()]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize(
    ("kinds", "read"),
    [(StagedRecord, decode_staged), (ReferenceRecord, decode_reference), (BranchRecord, decode_branch)],
    ids=["staged", "reference", "branch"],
)
def test_each_room_reads_its_own_records_and_no_others(kinds, read) -> None:
    for record in RECORDS.values():
        if isinstance(record, get_args(kinds)):
            assert read(encode(record)) == record
        else:
            with pytest.raises(CorruptRecord):
                read(encode(record))


@pytest.mark.parametrize("case", RECORDS)
def test_a_torn_record_is_corrupt(case: str) -> None:
    value = encode(RECORDS[case])
    for size in range(len(value)):
        with pytest.raises(CorruptRecord, match="nothing that depends on it will be deleted"):
            decode(value[:size], type(RECORDS[case]))
    with pytest.raises(CorruptRecord):
        decode(value + b"\x00", type(RECORDS[case]))


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_with_one_bad_byte_is_read_or_corrupt(case: str) -> None:
    """A text of it may not be one any more, which the decoder has an error of its own for."""
    value = encode(RECORDS[case])
    kind = type(RECORDS[case])
    for place in range(len(value)):
        for bad in (0x00, 0x80, 0xFF, value[place] ^ 0x80):
            with suppress(CorruptRecord):
                assert isinstance(decode(value[:place] + bytes([bad]) + value[place + 1 :], kind), kind)


def test_a_page_with_one_text_that_is_none_is_corrupt() -> None:
    entry, listed = (
        encode(RECORDS[case]).replace(b"data", b"dat\xff").replace(b"main", b"mai\xff") for case in ("entry", "listed")
    )
    with pytest.raises(CorruptRecord):
        decode_staged_many([entry])
    with pytest.raises(CorruptRecord):
        decode_reference_many([ABSENT, listed])


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_corrupt(value: bytes) -> None:
    for read in (decode_staged, decode_reference, decode_branch):
        try:
            record = read(value)
        except CorruptRecord:
            continue
        assert isinstance(record, Record)


def test_a_record_of_a_newer_version_is_read() -> None:
    """While versions are mixed, an older process meets fields that it does not know."""
    newer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode(RECORDS["tag, full"])), "new"])
    assert decode(newer, StoredTag) == RECORDS["tag, full"]


def test_metadata_is_written_in_one_order() -> None:
    assert encode(StoredCommit((), "", "", (), 0, "", "", {"a": "1", "b": "2"})) == encode(
        StoredCommit((), "", "", (), 0, "", "", {"b": "2", "a": "1"})
    )


def test_no_value_is_no_record() -> None:
    assert decode_optional(ABSENT, StoredTag) is None
    assert decode_optional(encode(StoredTag(COMMIT)), StoredTag) == StoredTag(COMMIT)


@pytest.mark.parametrize(
    ("live", "tokens"),
    [
        (StoredBranch(COMMIT, TOKEN, (), (), ""), (TOKEN,)),
        (StoredBranch(COMMIT, TOKEN, (OTHER,), (), ""), (TOKEN, OTHER)),
    ],
)
def test_a_reader_looks_through_the_newest_token_first(live: StoredBranch, tokens: tuple[Token, ...]) -> None:
    assert live.live_tokens == tokens
