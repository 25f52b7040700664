"""Read and make the XML of S3. What strangers send is bounded, and has no entities; what is made is built as text,
because a listing has thousands of elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
XML_BYTES_MAX: Final = 4 << 20
"""The largest document that is read. 10,000 parts with a checksum each take 3 MB."""
ELEMENTS_MAX: Final = 100_000
"""10,000 parts with all their checksums have 80,000."""
DEPTH_MAX: Final = 16
TAGS_MAX: Final = 2 * ELEMENTS_MAX + 2
TAG_BYTES_MAX: Final = 64 << 10
"""Of a tag, and of the text behind it: `TEXT_MAX` characters that are written as references are shorter."""
FED_BYTES: Final = 64 << 10
"""What the parser is given at once: other threads run between two pieces."""
TEXT_MAX: Final = 4096
"""Characters of one text: a key is the longest. Each copy of a text may take four bytes for each."""

Content: TypeAlias = "str | int | bool | Iterable[tuple[str, Content]]"
"""What is inside an element: a text, or elements by name, in order."""

NOT_IN_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML 1.0 cannot hold, not even as references."""
_OTHER_ENCODING: Final = re.compile(
    rb"""[^>]{0,99}\sencoding\s{0,9}=\s{0,9}["'](?!(?:utf-8|us-ascii)["'])""", re.IGNORECASE
)
_ESCAPED: Final = re.compile(r"[&<>\"\r\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_NAMED: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


class MalformedDocument(ValueError):
    """A document of a client is no XML, is not the one that is expected, or is beyond the bounds."""


def make_document(name: str, content: Content, *, namespace: str = NAMESPACE) -> bytes:
    """Make a document with one root element."""
    attribute = f' xmlns="{namespace}"' if namespace else ""
    body = make_content(content)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{attribute}>{body}</{name}>'.encode(errors="replace")


def make_content(content: Content) -> str:
    """Make the text of an element's inside."""
    if isinstance(content, str):
        return escape_text(content)
    if isinstance(content, bool):
        return "true" if content else "false"
    if isinstance(content, int):
        return str(content)
    return "".join([f"<{name}>{make_content(inner)}</{name}>" for name, inner in content])


def escape_text(text: str) -> str:
    """Escape a text. Characters that XML cannot hold become references, as S3 writes them."""
    return _ESCAPED.sub(_escape, text) if _ESCAPED.search(text) else text


def parse_document(body: bytes, name: str) -> Element:
    """Parse a client's document, whose root is `name`; namespaces are dropped. Raises MalformedDocument."""
    if len(body) > XML_BYTES_MAX:
        raise MalformedDocument(f"the document has more than {XML_BYTES_MAX} bytes; send less at once")
    if _OTHER_ENCODING.match(body) or b"\x00" in body:  # as of "<" in UTF-16
        raise MalformedDocument("the document is not in UTF-8; encode it so")
    _check_tags(body)
    # whatever the document says: in another encoding the bytes of its tags would be others
    parser = DefusedXMLParser(target=_BoundedBuilder(), forbid_dtd=True, encoding="utf-8")
    try:
        for at in range(0, len(body), FED_BYTES):
            parser.feed(body[at : at + FED_BYTES])
        root: Element = parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        raise MalformedDocument(f"the request's body is no XML that can be read ({error}); send {name}") from error
    if root.tag != name:
        raise MalformedDocument(f"the request's body has the root {root.tag[:64]!r}; send {name}")
    return root


def _check_tags(body: bytes) -> None:
    """Check how many tags there are, and how long each is with the text behind it. Raises MalformedDocument.

    The parser reads a tag in one call, in which nothing else in this process runs.
    """
    pieces = body.split(b"<", TAGS_MAX + 1)
    if len(pieces) > TAGS_MAX + 1:
        raise MalformedDocument(f"the document has more than {TAGS_MAX} tags; send less at once")
    if max(map(len, pieces)) > TAG_BYTES_MAX:
        raise MalformedDocument(f"a tag and the text behind it have more than {TAG_BYTES_MAX} bytes; send shorter ones")


class _BoundedBuilder(TreeBuilder):
    """Build a tree without namespaces; refuse too many elements, too deep ones and too long texts, while they come."""

    def __init__(self) -> None:
        super().__init__()
        self._elements = 0
        self._depth = 0
        self._text = 0

    def data(self, data: str, /) -> None:
        self._text += len(data)
        if self._text > TEXT_MAX:
            raise MalformedDocument(f"a text of more than {TEXT_MAX} characters")
        super().data(data)

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        attrs.clear()  # no document of S3 needs one to be read
        self._elements += 1
        self._text = 0
        self._depth += 1
        if self._elements > ELEMENTS_MAX or self._depth > DEPTH_MAX:
            raise MalformedDocument(f"more than {ELEMENTS_MAX} elements, or {DEPTH_MAX} levels")
        return super().start(tag.rpartition("}")[2], attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        self._text = 0
        return super().end(tag.rpartition("}")[2])


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _NAMED.get(character) or f"&#x{ord(character):X};"
