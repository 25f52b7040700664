"""Fixtures that every test may use; the real servers that tests start stand in `tests/servers/`."""

from hypothesis import settings

pytest_plugins = ["tests.commands", "tests.servers.redis_servers", "tests.servers.s3_servers"]

settings.register_profile("suite", deadline=None)  # no test asserts on time
settings.load_profile("suite")
