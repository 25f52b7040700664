"""Notice that the KV lost writes before anything is deleted (rule 21).

    fence.py            positions in the KV and witnesses in the object store; what a deleter does before it deletes
    manifest_check.py   whether the KV still knows what the manifest says
    settlement.py       put right what a loss of unwitnessed writes may have left, after other servers answer

Every deleter (the reaper, the offline job) has a `PositionFence` of its own. Without it nothing is deleted.
"""
