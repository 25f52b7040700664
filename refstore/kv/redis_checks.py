"""What a Redis tells about losing data, judged. Pure: it is given what INFO and CONFIG answered.

A server that is set to evict any key, and has a limit to reach, will lose the record that a blob is still needed: it is
refused. `volatile-*` policies are fine, since our keys have no time to live. The rest is warned about, loudly and once.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from refstore.errors import StoreMisconfigured

_log = structlog.stdlib.get_logger(__name__)


class Checks:
    def __init__(self, server: str) -> None:
        self._server = server
        self._said: set[str] = set()
        self._refused = False

    def check(self, memory: Mapping[str, str], persistence: Mapping[str, str], save: object) -> None:
        """The fields of `INFO memory` and `INFO persistence`, and what CONFIG GET save answered; empty, or None, where
        the server does not tell. Raises StoreMisconfigured.
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
                    what="it is refused until it may not",
                )
            else:
                _log.info("kv_evicts_no_more", server=self._server)
        if policy is None or limit_bytes is None:
            self._say(
                "kv_eviction_unknown",
                "the server does not tell whether it may evict keys; see that maxmemory-policy is noeviction",
            )
        elif evicts:
            raise StoreMisconfigured(
                f"{self._server} is set to evict any key (maxmemory-policy {policy}, maxmemory {limit_bytes} bytes), "
                "and with it the"
                " record that a blob is needed; set maxmemory-policy noeviction"
            )
        elif policy.startswith("allkeys"):
            self._say(
                "kv_would_evict",
                f"maxmemory-policy is {policy}: once maxmemory is set, records will be lost; set it to noeviction",
            )
        if persistence.get("aof_enabled") == "0":
            never_saves = isinstance(save, list) and save[1:] == [b""]
            lost = "a restart loses everything" if never_saves else "a crash loses what came after the last snapshot"
            self._say("kv_not_durable", f"appendonly is off: {lost}; set appendonly yes and appendfsync always")

    def _say(self, event: str, what: str) -> None:
        if event not in self._said:
            self._said.add(event)
            _log.warning(event, server=self._server, what=what)
