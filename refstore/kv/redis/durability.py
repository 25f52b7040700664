"""Judge whether a Redis may lose data, from what INFO and CONFIG answered. Pure: nothing is sent here.

A server is refused if it has a memory limit and may evict any key: it would lose the record that a blob is still
needed. `volatile-*` policies are fine, because our keys have no time to live. All other risks are logged as warnings,
once each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from refstore.core import event_log
from refstore.errors import StoreMisconfigured

_log = event_log.get_logger(__name__)


class DurabilityChecks:
    def __init__(self, server: str) -> None:
        self._server = server
        self._said: set[str] = set()
        self._refused = False

    def check(self, memory: Mapping[str, str], persistence: Mapping[str, str], save: object) -> None:
        """Check the fields of `INFO memory` and `INFO persistence`, and the answer to CONFIG GET save. They are empty
        or None if the server does not show them. Raises StoreMisconfigured.
        """
        policy, limit_bytes = memory.get("maxmemory_policy"), memory.get("maxmemory")
        evicts = policy is not None and policy.startswith("allkeys") and limit_bytes not in (None, "0")
        if evicts != self._refused:
            self._refused = evicts
            if evicts:
                _log.error(
                    "kv_may_evict",
                    server=self._server,
                    policy=policy,
                    maxmemory=limit_bytes,
                    what="it is refused until its settings are corrected",
                )
            else:
                _log.info("kv_evicts_no_more", server=self._server)
        if policy is None or limit_bytes is None:
            self._log_risk(
                "kv_eviction_unknown",
                "the server does not show whether it may evict keys; make sure that maxmemory-policy is noeviction",
            )
        elif evicts:
            raise StoreMisconfigured(
                f"{self._server} may evict any key (maxmemory-policy {policy}, maxmemory {limit_bytes} bytes), also "
                "the record that a blob is needed; set maxmemory-policy noeviction"
            )
        elif policy.startswith("allkeys"):
            self._log_risk(
                "kv_would_evict",
                f"maxmemory-policy is {policy}: once maxmemory is set, records will be lost; set it to noeviction",
            )
        for event, what in persistence_risks(persistence, save):
            self._log_risk(event, what)

    def _log_risk(self, event: str, what: str) -> None:
        if event not in self._said:
            self._said.add(event)
            _log.warning(event, server=self._server, what=what)


def persistence_risks(
    persistence: Mapping[str, str], save: object, appendfsync: object = None
) -> Iterator[tuple[str, str]]:
    """Yield what may lose writes: an event of the log, and what is wrong with what to do. `save` and `appendfsync` are
    the answers to CONFIG GET.
    """
    if persistence.get("aof_enabled") == "0":
        never_saves = isinstance(save, list) and save[1:] == [b""]
        loss = "a restart loses everything" if never_saves else "a crash loses all writes after the last snapshot"
        yield "kv_not_durable", f"appendonly is off: {loss}; set appendonly yes and appendfsync always"
    elif isinstance(appendfsync, list) and appendfsync[1:] in ([b"everysec"], [b"no"]):
        yield "kv_fsync_late", "appendfsync is not always: a power loss may take the last writes; set it to always"
    for field, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if persistence.get(field, "ok") != "ok":
            yield (
                "kv_not_written",
                f"the server could not write its {what} the last time; look at its log and make room on its disk",
            )
