"""A Redis Cluster of the tests starts although one of its nodes is slow."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.servers.redis_servers import RedisCluster


def test_a_cluster_greets_a_node_again_that_answers_after_the_node_timeout(tmp_path: Path) -> None:
    """A loaded machine is that slow. The node that greets forgets the other after its node timeout of 2 s."""
    cluster = RedisCluster(tmp_path, masters=1, replicas=1)
    slow = cluster.nodes[1]
    slow.start()
    slow.pause()
    slow.start = lambda: slow  # type: ignore[method-assign]  # it runs already
    resume = threading.Timer(4, slow.resume)
    resume.start()
    try:
        with cluster:
            assert cluster.settled()
    finally:
        resume.join()
