"""The union of all records."""

from __future__ import annotations

from refstore.records.branch_records import Branch, ClosedBranch, CommittedTokens, DeletedToken, Tag, TokenRecord
from refstore.records.commit_records import Commit
from refstore.records.figure_records import GcFigures, ReaperFigures, RunProgress, StopRequest
from refstore.records.lake_records import AccessKeyRecord, AuditHead, DurationsRecord, LakeRecord, Position, WaitingAct
from refstore.records.location_records import Location, LocationsFlag, PurgeRecord
from refstore.records.mark_records import GcFlag, GcRun, Mark, NothingToDelete
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
from refstore.records.reference_records import Deleting, Emptied, Issued, Listed
from refstore.records.repository_records import ClearedRepository, ImportRecord, RepositoryRecord, RetentionRecord
from refstore.records.staging_records import Entry, Tombstone

AnyRecord = (
    Entry | Tombstone | Listed | Emptied | Issued | Deleting | Branch | ClosedBranch | DeletedToken | CommittedTokens
    | TokenRecord | Commit | Mark | Tag | RepositoryRecord | DueHintRecord | Lease | Heartbeat | BreakerState |
    DeletionCount | StampRecord
    | AccessKeyRecord | RetentionRecord | GcFlag | GcRun | NothingToDelete | ClearedRepository | ImportRecord
    | AuditHead | WaitingAct | DurationsRecord | Position | PurgeRecord | Location | LocationsFlag
    | ReaperFigures | GcFigures | RunProgress | StopRequest | SharedDueHintRecord | LakeRecord
    | MultipartUpload | UploadedPart
)  # fmt: skip
