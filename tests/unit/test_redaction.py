"""What messages show of URLs, and what no message shows."""

from __future__ import annotations

import re
from typing import Final

import pytest

from refstore.core.redaction import HIDDEN, redact_text, redact_url

OLD_URL: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
OLD_LOGIN: Final = re.compile(r"%2F%2F[^/?#&]*%40", re.IGNORECASE)
OLD_PARAMETER: Final = re.compile(
    r"([?&][^=&#]*(?:password|passwd|secret|token|credential|signature|key)[^=&#]*=)[^&#]*", re.IGNORECASE
)
"""What is to be hidden, said by patterns that take long: the text is short here."""

PIECES: Final = (
    "s3", "redis", "://", "user", ":", "pa/ss", "@", "host", "/", "?", "key", "=", "x", "&", "#", "Secret", "%2f%2F",
    "%40", " ",
)  # fmt: skip


def hidden_by_patterns(url: str) -> str:
    return OLD_PARAMETER.sub(rf"\g<1>{HIDDEN}", OLD_LOGIN.sub(f"%2F%2F{HIDDEN}%40", url))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:pass@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://:pa/s?s@w@host/0", "redis://:***@host/0"),
        ("redis://pass@host/0", "redis://***@host/0"),
        ("redis://user:se:cr:et@host", "redis://user:***@host"),
        ("redis://user:se@cret@host", "redis://user:***@host"),
        ("redis://user:sec?ret@host/0", "redis://user:***@host/0"),
        ("redis+sentinel://u:secret@a:1,b:2/main?sentinel_password=secret&wait=1",
        "redis+sentinel://u:***@a:1,b:2/main?sentinel_password=***&wait=1"),
        ("sqlite:///data/@me/kv.db?synchronous=full", "sqlite:///data/@me/kv.db?synchronous=full"),
        ("s3://bucket/p?endpoint=http://a:b@host&secret_key=c", "s3://bucket/p?endpoint=http:***@host&secret_key=***"),
        ("https://host/o?X-Amz-Signature=1&X-Amz-Credential=2&x=3",
        "https://host/o?X-Amz-Signature=***&X-Amz-Credential=***&x=3"),
        ("s3://AKIA:secret@bucket/p", "s3://***@bucket/p"),
        ("s3://bucket/p?secret_access_key=abc&region=x", "s3://bucket/p?secret_access_key=***&region=x"),
        ("https://h/p?a=1?token=abc#f", "https://h/p?a=1?token=***#f"),
        ("s3://b/p?endpoint=http%3A%2F%2Fme%3Apass%40host", "s3://b/p?endpoint=http%3A%2F%2F***%40host"),
        ("https://h/#?x=1&X-Amz-Signature=abc", "https://h/#?x=1&X-Amz-Signature=***"),
        ("nonsense", "nonsense"),
        ("", ""),
    ],
)  # fmt: skip
def test_secrets_are_hidden(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_text(f"cannot reach {url} (for now)") == f"cannot reach {shown} (for now)"


@pytest.mark.parametrize("text", ["#top", "&region=x", "&token=abc", "#?key=abc&x=1"])
def test_what_begins_with_a_delimiter_is_shown_but_for_secrets(text: str) -> None:
    assert redact_url(text) == hidden_by_patterns(text) != ""


def test_a_text_is_redacted_as_by_the_patterns() -> None:
    """Every text of a few pieces that a URL may have, in a fixed order of chance."""
    import random

    rng = random.Random(35)
    for _ in range(20_000):
        url = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
        for text in (url, f"?{url}", f"redis://h/?{url}"):
            shown = redact_text(text)
            for match in OLD_URL.finditer(text):
                rest = match[0].partition("://")[2]
                if "@" not in rest:
                    assert redact_url(match[0]) == hidden_by_patterns(match[0])
            assert redact_text(shown) == shown or "@" in shown
