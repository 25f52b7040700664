"""What the servers of the tests have in common as they start."""

from __future__ import annotations

START_ATTEMPTS = 5
"""Between finding a free port and binding it, somebody else may take it."""


class ServerEndedError(RuntimeError):
    """A process of the server ended before it answered, as one does whose port another program took."""
