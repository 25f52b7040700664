"""Fixtures that every test may use; the real servers that tests start stand in `tests/servers/`."""

pytest_plugins = ["tests.commands", "tests.servers.redis_servers", "tests.servers.s3_servers"]
