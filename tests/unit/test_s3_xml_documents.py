"""XML of S3: what strangers send is bounded and has no entities; every error of refstore's has a code that S3 knows."""

from __future__ import annotations

from typing import Any

import pytest
from defusedxml import ElementTree

from refstore import errors
from refstore_api import error_responses
from refstore_s3 import s3_errors, xml_documents
from refstore_s3.s3_errors import S3Error, make_error_body, to_s3_error
from refstore_s3.xml_documents import MalformedDocument, make_document, parse_document


def test_a_document_is_read_whatever_its_namespace() -> None:
    body = b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>a&amp;b</Key></Object></Delete>'
    assert parse_document(body, "Delete").findtext("Object/Key") == "a&b"
    assert parse_document(b"<Delete><Quiet>true</Quiet></Delete>", "Delete").findtext("Quiet") == "true"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"<Other/>",
        b"not xml",
        b'<!DOCTYPE Delete [<!ENTITY a "b">]><Delete>&a;</Delete>',
        b'<!DOCTYPE Delete SYSTEM "http://example.org/x.dtd"><Delete/>',
        b"<Delete>" + b"<a>" * 40 + b"</a>" * 40 + b"</Delete>",
        b"<Delete>" + b"<a/>" * (xml_documents.ELEMENTS_MAX + 1) + b"</Delete>",
        b"<Delete>" + b" " * xml_documents.XML_BYTES_MAX + b"</Delete>",
        b'<?xml version="1.0" encoding="nonsense"?><Delete/>',
        b"<?xml version='1.0' encoding = 'cp037'?>" + "<Delete/>".encode("cp037"),
        b"<Delete>\xff</Delete>",
        "<Delete/>".encode("utf-16"),
        "<Delete/>".encode("utf-16-le"),
        b"<Delete " + b" ".join(b'a%d=">"' % number for number in range(400_000)) + b"/>",
        b"<Delete>" + b"<a/>" * 2 + b"<!--" + b"<" * xml_documents.TAGS_MAX + b"--></Delete>",
        b"<Delete><!--" + b"x" * xml_documents.TAG_BYTES_MAX + b"--></Delete>",
    ],
    ids=[
        *("empty", "cut", "root", "text", "entity", "dtd", "deep", "many", "large", "encoding", "EBCDIC", "bytes"),
        *("UTF-16", "UTF-16 without a mark", "attributes", "brackets", "comment"),
    ],
)
def test_a_hostile_document_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedDocument):
        parse_document(body, "Delete")


def test_the_parser_never_gets_a_long_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads one in a single call: 400,000 attributes stopped every request for two seconds."""

    def parser(*_arguments: Any, **_options: Any) -> Any:
        raise AssertionError("the parser was asked")

    monkeypatch.setattr(xml_documents, "DefusedXMLParser", parser)
    for value in (b"1", b">", b"&gt;"):
        body = b"<Delete>" + b"<a " + b" ".join(b'a%d="%s"' % (n, value) for n in range(100_000)) + b"/></Delete>"
        with pytest.raises(MalformedDocument):
            parse_document(body, "Delete")


@pytest.mark.parametrize("said", ["utf-8", "UTF-8", "us-ascii"])
def test_a_document_may_say_that_it_is_utf_8(said: str) -> None:
    body = f'<?xml version="1.0" encoding="{said}"?><Delete><Key>a</Key></Delete>'.encode()
    assert parse_document(body, "Delete").findtext("Key") == "a"


def test_a_document_is_read_in_whatever_pieces_it_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "&#x10FFFF;" * xml_documents.TEXT_MAX
    body = f"<Delete>{'<Object><Key>é</Key></Object>' * 900}<Key>{text}</Key></Delete>".encode()
    for fed_bytes in (1, 7, xml_documents.FED_BYTES):
        monkeypatch.setattr(xml_documents, "FED_BYTES", fed_bytes)
        root = parse_document(body, "Delete")
        assert [each.findtext("Key") for each in root.findall("Object")] == ["é"] * 900
        assert root.findtext("Key") == "\U0010ffff" * xml_documents.TEXT_MAX


def test_what_is_made_is_read_again() -> None:
    made = make_document("List", [("Key", "a<b>&\"'é"), ("Empty", ""), ("Size", 7), ("Cut", False), ("In", [("A", 1)])])
    root = ElementTree.fromstring(made)
    space = "{" + xml_documents.NAMESPACE + "}"
    assert root.tag == f"{space}List"
    assert [(each.tag.removeprefix(space), each.text) for each in root] == [
        ("Key", "a<b>&\"'é"),
        ("Empty", None),
        ("Size", "7"),
        ("Cut", "false"),
        ("In", None),
    ]
    assert make_document("Key", "a\x01\rb").endswith(b">a&#x1;&#xD;b</Key>")


def _kinds(kind: type[errors.RefstoreError]) -> list[type[errors.RefstoreError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]


def test_every_error_has_a_code_and_the_status_class_of_the_api() -> None:
    for kind in _kinds(errors.RefstoreError):
        if not kind.__module__.startswith("refstore") or kind.__module__.startswith("refstore.conformance"):
            continue
        error: Any = kind.__new__(kind, "what happened; what to do")  # without its arguments
        error.happened = ""
        error.size_bytes = error.retry_after_seconds = 1
        answer = to_s3_error(error)
        assert answer.code in s3_errors.STATUS
        api = error_responses.status_of(error)
        assert answer.status // 100 == api // 100 or (api, answer.status) in {(429, 503), (409, 503)}, kind


def test_a_store_fault_is_not_told() -> None:
    answer = to_s3_error(errors.KVUnavailable("redis://10.0.0.7 does not answer"))
    assert (answer.code, answer.status, answer.headers["Retry-After"]) == ("ServiceUnavailable", 503, "1")
    assert "10.0.0.7" not in answer.message


def test_the_body_of_an_error_has_what_clients_look_for() -> None:
    error = S3Error("InvalidArgument", "no <such> thing", fields={"ArgumentName": "max-keys"})
    root = ElementTree.fromstring(make_error_body(error, "/repo/main/a", "id-1"))
    assert root.tag == "Error"
    assert {each.tag: each.text for each in root} == {
        "Code": "InvalidArgument",
        "Message": "no <such> thing",
        "ArgumentName": "max-keys",
        "Resource": "/repo/main/a",
        "RequestId": "id-1",
    }
