"""Signature Version 4: AWS's published signatures hold, what boto signs holds, and nothing that was changed does."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore_s3.s3_errors import S3Error
from refstore_s3.signature_v4 import (
    EMPTY_SHA256,
    SKEW_MS,
    PayloadKind,
    SignedRequest,
    canonical_request,
    parse_query,
    read_claims,
    verify,
)
from tests.kit.s3_signing import KEY_ID, SECRET, S3Signer

DOCUMENTED_MS = int(datetime(2013, 5, 24, tzinfo=UTC).timestamp()) * 1000
SIGNER = S3Signer(DOCUMENTED_MS)
BUCKET = {"host": "examplebucket.s3.amazonaws.com", "x-amz-content-sha256": EMPTY_SHA256}


def _request(method: str, path: str, query: str, headers: Mapping[str, str]) -> SignedRequest:
    return SignedRequest(
        method, path.encode(), query.encode(), [(name.encode(), value.encode()) for name, value in headers.items()]
    )


def _signed(signature: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as the S3 documentation signs them: all."""
    there = {"x-amz-date": "20130524T000000Z", **headers}
    fields = f"Credential={KEY_ID}/20130524/us-east-1/s3/aws4_request,SignedHeaders={';'.join(sorted(there))}"
    return {**there, "authorization": f"AWS4-HMAC-SHA256 {fields},Signature={signature}"}


# Cases: the examples of "Authenticating Requests" of the S3 API reference, with their signatures.
DOCUMENTED = {
    "get": _request(
        "GET",
        "/test.txt",
        "",
        _signed("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", {**BUCKET, "range": "bytes=0-9"}),
    ),
    "put": _request(
        "PUT",
        "/test$file.text",
        "",
        _signed(
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            {
                "host": BUCKET["host"],
                "date": "Fri, 24 May 2013 00:00:00 GMT",
                "x-amz-content-sha256": "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
            },
        ),
    ),
    "lifecycle": _request(
        "GET", "/", "lifecycle", _signed("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543", BUCKET)
    ),
    "list": _request(
        "GET",
        "/",
        "prefix=J&max-keys=2",
        _signed("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7", BUCKET),
    ),
    "presigned": _request(
        "GET",
        "/test.txt",
        f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={KEY_ID}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
        {"host": BUCKET["host"]},
    ),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_documented_signatures_hold(name: str) -> None:
    request = DOCUMENTED[name]
    claims = read_claims(request)
    assert claims.credential == (KEY_ID, "20130524", "us-east-1")
    assert claims.presigned_seconds == (86400 if name == "presigned" else None)
    assert verify(request, ["another secret", SECRET], DOCUMENTED_MS) == verify(
        request, [SECRET], DOCUMENTED_MS, claims
    )
    with pytest.raises(S3Error, match="secret") as raised:
        verify(request, ["another secret"], DOCUMENTED_MS)
    assert raised.value.code == "SignatureDoesNotMatch"


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
UNRESERVED = f"-._~0123456789{LETTERS}"
SUITE_HOST = ("host", "example.amazonaws.com")
SUITE_DATE = ("x-amz-date", "20150830T123600Z")
SUITE_TOKEN = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"
FORM_SHA256 = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e"
FORM = [("content-length", "13"), ("x-amz-content-sha256", FORM_SHA256)]
# Cases: AWS's signing test suite, but for those that S3 excludes (normalized paths) or HTTP does (folded headers).
SUITE: list[tuple[str, str, str, list[tuple[str, str]], str]] = [
    ("GET", "/", "", [("my-header1", value) for value in ("value2", "value2", "value1")], "c9d5ea9f3f72853a"),
    ("GET", "/", "", [("my-header1", f"value{digit}") for digit in "4132"], "08c7e5a9acfcfeb3"),
    ("GET", "/", "", [("my-header1", " value1"), ("my-header2", ' "a   b   c"')], "acc3ed3afb60bb29"),
    ("GET", "/example1/example2/../..", "", [], "dc33e0856fd4baca"),
    ("GET", "/example/..", "", [], "eca7ead57bb5aa5c"),
    ("GET", "/./", "", [], "68714168e6557f8f"),
    ("GET", "/./example", "", [], "beb03f223f7deae4"),
    ("GET", "//", "", [], "c88bcd3d312d7507"),
    ("GET", "//example//", "", [], "87cca117541a147f"),
    ("GET", "/example%20space/", "", [], "6524875832003255"),
    ("GET", f"/{UNRESERVED}", "", [], "07ef7494c76fa485"),
    ("GET", "/\u1234", "", [], "8318018e0b0f223a"),
    ("GET", "/", "Param1=value1", [], "a67d582fa61cc504"),
    ("GET", "/", "Param-3=Value3&Param=Value2&%E1%88%B4=Value1", [], "371d3713e185cc33"),
    ("GET", "/", "Param2=value2&Param1=value1", [], "b97d918cfa904a5b"),
    ("GET", "/", f"{UNRESERVED}={UNRESERVED}", [], "9c3e54bfcdf0b197"),
    ("GET", "/", "\u1234=bar", [], "2cdec8eed098649f"),
    ("GET", "/", "", [("x-amz-security-token", SUITE_TOKEN)], "07ec1639c89043aa"),
    ("GET", "/", "", [], "5fa00fa31553b73e"),
    ("POST", "/", "", [], "5da7c1a2acd57cee"),
    ("POST", "/", "", [("my-header1", "value1")], "c5410059b04c1ee0"),
    ("POST", "/", "", [("my-header1", "VALUE1")], "cdbc9802e29d2942"),
    ("POST", "/", "Param1=value1", [], "28038455d6de14ea"),
    ("POST", "/", "", [*FORM, ("content-type", "application/x-www-form-urlencoded")], "d3875051da386907"),
    (
        "POST",
        "/",
        "",
        [*FORM, ("content-type", "application/x-www-form-urlencoded; charset=utf-8")],
        "328d1b9eaadca9f5",
    ),
]


@pytest.mark.parametrize(("method", "path", "query", "headers", "signature"), SUITE, ids=lambda value: str(value)[:40])
def test_the_canonical_request_is_that_of_the_signing_test_suite(
    method: str, path: str, query: str, headers: list[tuple[str, str]], signature: str
) -> None:
    """The suite signs for another service, so the signature is made here; its first digits tell."""
    there = [SUITE_HOST, SUITE_DATE, *headers]
    request = SignedRequest(
        method, path.encode(), query.encode(), [(name.encode(), value.encode()) for name, value in there]
    )
    payload = FORM_SHA256 if ("content-length", "13") in headers else EMPTY_SHA256
    canonical = canonical_request(request, ";".join(sorted({name for name, _ in there})), payload)
    scope = "20150830/us-east-1/service/aws4_request"
    key = b"AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join(("AWS4-HMAC-SHA256", SUITE_DATE[1], scope, hashlib.sha256(canonical).hexdigest()))
    assert hmac.digest(key, text.encode(), "sha256").hex().startswith(signature)


KEYS = [
    "plain",
    "a b+c",
    "a/../b",
    "../..",
    "a//b/",
    "./.",
    "a%2Fb",
    "a;b=c&d",
    "é\u1234\U0001f600",
    "*'()!~$@:,?#[]",
    'quote"\\<>^`{|}',
    "tab\tline\ncr\r\x00\x7f",
    "%",
    "%zz",
]


def _signed_by_boto(
    method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], *, expires: int | None = None
) -> tuple[SignedRequest, int]:
    encoded = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query.items())
    url = f"http://s3.example.org/bucket/{quote(key, safe='/~')}{'?' * bool(encoded)}{encoded}"
    request = AWSRequest(method=method, url=url, headers=dict(headers), data=b"body" if expires is None else b"")
    credentials = Credentials(KEY_ID, SECRET)
    if expires is None:
        S3SigV4Auth(credentials, "s3", "eu-west-1").add_auth(request)
    else:
        S3SigV4QueryAuth(credentials, "s3", "eu-west-1", expires=expires).add_auth(request)
    parts = urlsplit(request.url)
    sent = {"host": "s3.example.org", **{name.lower(): value for name, value in request.headers.items()}}
    timestamp = request.context["timestamp"]
    signed_at = datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return _request(method, parts.path, parts.query, sent), int(signed_at.timestamp()) * 1000


@pytest.mark.parametrize("key", KEYS)
def test_what_boto_signs_holds(key: str) -> None:
    query = {"prefix": key, "empty": "", "a+b": "c d", "a": "%2F;", "tagging": ""}
    request, now_ms = _signed_by_boto("PUT", key, query, {"X-Amz-Meta-A": " a   b ", "Content-Type": "text/plain"})
    verified = verify(request, [SECRET], now_ms)
    assert (verified.payload, verified.payload_sha256) == (PayloadKind.HASHED, hashlib.sha256(b"body").hexdigest())
    assert parse_query(request.query) == {name.encode(): value.encode() for name, value in query.items()}
    request, now_ms = _signed_by_boto("GET", key, query, {}, expires=60)
    assert request.query
    assert verify(request, [SECRET], now_ms + 59_999).payload is PayloadKind.UNSIGNED


@settings(max_examples=60)
@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=4), st.text(max_size=6), max_size=3),
    st.integers(0, 10_000),
)
def test_what_boto_signs_holds_until_a_byte_is_changed(key: str, query: dict[str, str], at: int) -> None:
    request, now_ms = _signed_by_boto("GET", key, {n: v for n, v in query.items() if not n.startswith("X-Amz")}, {})
    verify(request, [SECRET], now_ms)
    wire = request.raw_path + b"?" + request.query
    at %= len(wire)
    changed = wire[:at] + (b"x" if wire[at : at + 1] != b"x" else b"y") + wire[at + 1 :]
    path, _, rest = changed.partition(b"?")
    tampered = request._replace(raw_path=path, query=rest)
    try:
        verify(tampered, [SECRET], now_ms)
    except S3Error:
        return
    assert canonical_request(tampered, "host", "") == canonical_request(request, "host", ""), "spelled in another way"


BASE = SIGNER.sign("PUT", "/bucket/a%20b", "partNumber=1", {"x-amz-meta-a": "b", "content-length": "0"})


def _replaced(**changes: str | None) -> dict[str, str]:
    changed = {**BASE, **{name.replace("_", "-"): value for name, value in changes.items() if value is not None}}
    return {name: value for name, value in changed.items() if changes.get(name.replace("-", "_"), "") is not None}


def _authorization(old: str, new: str) -> dict[str, str]:
    assert old in BASE["authorization"]
    return _replaced(authorization=BASE["authorization"].replace(old, new))


@pytest.mark.parametrize("path", ["/bucket/a%20b", "/bucket/a b", "/%62ucket/%61%20b"])
@pytest.mark.parametrize("query", ["partNumber=1", "&partNumber=%31&", "part%4Eumber=1"])
def test_every_spelling_of_the_same_request_holds(path: str, query: str) -> None:
    spaced = _replaced(x_amz_meta_a="  b\t")
    verify(_request("PUT", path, query, spaced), [SECRET], DOCUMENTED_MS)


NOT_MATCHING = "SignatureDoesNotMatch"
MALFORMED = "AuthorizationHeaderMalformed"
# Cases: a name, the method, the path, the query, the headers, and the code of the refusal.
TAMPERED: list[tuple[str, str, str, str, dict[str, str], str]] = [
    ("method", "GET", "/bucket/a%20b", "partNumber=1", BASE, NOT_MATCHING),
    ("key", "PUT", "/bucket/a%20c", "partNumber=1", BASE, NOT_MATCHING),
    ("plus in the path is no space", "PUT", "/bucket/a+b", "partNumber=1", BASE, NOT_MATCHING),
    ("encoded slash", "PUT", "/bucket%2Fa%20b", "partNumber=1", BASE, NOT_MATCHING),
    ("encoded twice", "PUT", "/bucket/a%2520b", "partNumber=1", BASE, NOT_MATCHING),
    ("second slash", "PUT", "//bucket/a%20b", "partNumber=1", BASE, NOT_MATCHING),
    ("dots", "PUT", "/x/../bucket/a%20b", "partNumber=1", BASE, NOT_MATCHING),
    ("case of the path", "PUT", "/bucket/A%20b", "partNumber=1", BASE, NOT_MATCHING),
    ("a path parameter", "PUT", "/bucket/a%20b;x", "partNumber=1", BASE, NOT_MATCHING),
    ("broken escape", "PUT", "/bucket/a%2", "partNumber=1", BASE, "InvalidURI"),
    ("no query", "PUT", "/bucket/a%20b", "", BASE, NOT_MATCHING),
    ("another parameter", "PUT", "/bucket/a%20b", "partNumber=1&acl", BASE, NOT_MATCHING),
    ("semicolon separates nothing", "PUT", "/bucket/a%20b", "partNumber=1;acl", BASE, NOT_MATCHING),
    ("a parameter twice", "PUT", "/bucket/a%20b", "partNumber=1&partNumber=2", BASE, "InvalidArgument"),
    ("case of a parameter", "PUT", "/bucket/a%20b", "partnumber=1", BASE, NOT_MATCHING),
    ("broken escape in the query", "PUT", "/bucket/a%20b", "partNumber=1&a=%", BASE, "InvalidURI"),
    ("too many parameters", "PUT", "/", "&".join(f"a{each}" for each in range(300)), BASE, "InvalidArgument"),
    ("signed value", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_meta_a="c"), NOT_MATCHING),
    ("case of a value", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_meta_a="B"), NOT_MATCHING),
    ("length", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(content_length="1"), NOT_MATCHING),
    ("host", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(host="other.example.org"), NOT_MATCHING),
    ("no host", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(host=None), "AccessDenied"),
    ("a signed header away", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_meta_a=None), "AccessDenied"),
    ("payload", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_content_sha256="0" * 64), NOT_MATCHING),
    (
        "payload no longer signed",
        "PUT",
        "/bucket/a%20b",
        "partNumber=1",
        _replaced(x_amz_content_sha256="UNSIGNED-PAYLOAD"),
        NOT_MATCHING,
    ),
    ("payload unknown", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_content_sha256="x"), "InvalidArgument"),
    ("no payload", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_content_sha256=None), "InvalidRequest"),
    ("an unsigned x-amz header", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_acl="p"), "AccessDenied"),
    ("date", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_date="20130524T000001Z"), NOT_MATCHING),
    ("another day", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_date="20130525T000000Z"), MALFORMED),
    ("no date", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_date=None), "AccessDenied"),
    ("date in words", "PUT", "/bucket/a%20b", "partNumber=1", _replaced(x_amz_date="today"), MALFORMED),
    ("service", "PUT", "/bucket/a%20b", "partNumber=1", _authorization("/s3/", "/iam/"), MALFORMED),
    ("region", "PUT", "/bucket/a%20b", "partNumber=1", _authorization("us-east-1", "us-east-2"), NOT_MATCHING),
    ("order of names", "PUT", "/", "", _authorization("content-length;host", "host;content-length"), MALFORMED),
    ("name twice", "PUT", "/", "", _authorization("content-length;host", "content-length;host;host"), MALFORMED),
    ("names in capitals", "PUT", "/", "", _authorization("content-length;host", "content-length;Host"), MALFORMED),
    ("host unsigned", "PUT", "/", "", _authorization("content-length;host", "content-length"), MALFORMED),
    ("a name with a line break", "PUT", "/", "", _authorization("content-length;host", "a\nb;host"), "InvalidRequest"),
    ("a field twice", "PUT", "/", "", _authorization("Signature=", "Signature=0, Signature="), MALFORMED),
    ("another field", "PUT", "/", "", _authorization("Signature=", "Other=0, Signature="), MALFORMED),
    ("no field", "PUT", "/", "", _authorization("Signature=", "Sig="), MALFORMED),
    (
        "signature in capitals",
        "PUT",
        "/bucket/a%20b",
        "partNumber=1",
        _authorization(BASE["authorization"][-64:], BASE["authorization"][-64:].upper()),
        NOT_MATCHING,
    ),
    ("empty signature", "PUT", "/", "", _replaced(authorization=BASE["authorization"][:-64]), NOT_MATCHING),
    ("no ASCII", "PUT", "/", "", _replaced(authorization=BASE["authorization"] + "é"), NOT_MATCHING),
    ("version 2", "PUT", "/", "", _replaced(authorization="AWS key:signature"), "InvalidRequest"),
    ("version 2 in the query", "GET", "/", "AWSAccessKeyId=a&Signature=b&Expires=1", {"host": "a"}, "InvalidRequest"),
    ("ECDSA", "PUT", "/", "", _replaced(authorization="AWS4-ECDSA-P256-SHA256 Credential=a"), "InvalidRequest"),
    (
        "ECDSA chunks",
        "PUT",
        "/",
        "",
        _replaced(x_amz_content_sha256="STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"),
        "NotImplemented",
    ),
    ("unsigned", "GET", "/", "", {"host": "a"}, "AccessDenied"),
    ("signed twice", "PUT", "/bucket/a%20b", f"partNumber=1&{SIGNER.presign('PUT', '/')}", BASE, "InvalidArgument"),
]


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "code"),
    [case[1:] for case in TAMPERED],
    ids=[case[0] for case in TAMPERED],
)
def test_what_was_changed_is_refused(method: str, path: str, query: str, headers: dict[str, str], code: str) -> None:
    with pytest.raises(S3Error) as raised:
        verify(_request(method, path, query, headers), [SECRET], DOCUMENTED_MS)
    assert raised.value.code == code


@pytest.mark.parametrize("name", ["x-amz-meta-a", "host", "authorization", "content-length", "x-amz-date", "date"])
def test_a_header_that_counts_may_not_stand_there_twice(name: str) -> None:
    request = _request("PUT", "/bucket/a%20b", "partNumber=1", {**BASE, "date": "Fri, 24 May 2013 00:00:00 GMT"})
    for value in (BASE.get(name, "other"), "other"):
        repeated = request._replace(headers=[*request.headers, (name.encode(), value.encode())])
        with pytest.raises(S3Error, match="2 times"):
            verify(repeated, [SECRET], DOCUMENTED_MS)


def test_a_signed_header_may_not_be_split() -> None:
    """The canonical request joins what stands there twice, and its reader may take one of them."""
    headers = SIGNER.sign("GET", "/", headers={"if-match": "a,b"})
    split = [(b"if-match", b"a"), (b"if-match", b"b")]
    request = _request("GET", "/", "", {name: value for name, value in headers.items() if name != "if-match"})
    with pytest.raises(S3Error, match="2 times"):
        verify(request._replace(headers=[*request.headers, *split]), [SECRET], DOCUMENTED_MS)


def test_a_plus_in_the_query_is_a_space() -> None:
    assert parse_query(b"a+b=c+d%2Be&f&g=h=i&&j;k=") == {b"a b": b"c d+e", b"f": b"", b"g": b"h=i", b"j;k": b""}
    headers = SIGNER.sign("GET", "/", "prefix=a%2Bb")
    verify(_request("GET", "/", "prefix=a%2bb", headers), [SECRET], DOCUMENTED_MS)
    with pytest.raises(S3Error):
        verify(_request("GET", "/", "prefix=a+b", headers), [SECRET], DOCUMENTED_MS)


@pytest.mark.parametrize("region", ["US", "RegionOne", "us_east.1", "x" * 64])
def test_any_region_does(region: str) -> None:
    """Clients sign for the region that they are set up for, and stores of others have names of all kinds."""
    signer = SIGNER._replace(region=region)
    verify(_request("GET", "/", "", signer.sign("GET", "/")), [SECRET], DOCUMENTED_MS)
    verify(_request("GET", "/", signer.presign("GET", "/"), {"host": "s3.example.org"}), [SECRET], DOCUMENTED_MS)


def test_a_header_that_does_not_count_may_be_unsigned() -> None:
    verify(_request("PUT", "/bucket/a%20b", "partNumber=1", {**BASE, "accept": "*/*"}), [SECRET], DOCUMENTED_MS)


@pytest.mark.parametrize("off_ms", [-SKEW_MS - 1, -SKEW_MS, 0, SKEW_MS, SKEW_MS + 1])
def test_a_request_is_sent_again_within_a_quarter_of_an_hour_only(off_ms: int) -> None:
    request = _request("PUT", "/bucket/a%20b", "partNumber=1", BASE)
    if abs(off_ms) <= SKEW_MS:
        verify(request, [SECRET], DOCUMENTED_MS + off_ms)
        return
    with pytest.raises(S3Error, match="15 minutes") as raised:
        verify(request, [SECRET], DOCUMENTED_MS + off_ms)
    assert raised.value.code == "RequestTimeTooSkewed"


def test_a_date_that_there_is_not_is_refused() -> None:
    headers = {name: value.replace("20130524", "20131324") for name, value in SIGNER.sign("GET", "/").items()}
    with pytest.raises(S3Error, match="is no date"):
        verify(_request("GET", "/", "", headers), [SECRET], DOCUMENTED_MS)


@pytest.mark.parametrize("date", ["Fri, 24 May 2013 00:00:00 GMT", "Fri, 24 May 2013 02:00:00 +0200"])
def test_the_date_of_http_serves_where_it_is_signed(date: str) -> None:
    signed = {"host": "s3.example.org", "x-amz-content-sha256": EMPTY_SHA256, "date": date}
    canonical = canonical_request(_request("GET", "/", "", signed), "date;host;x-amz-content-sha256", EMPTY_SHA256)
    digest = hashlib.sha256(canonical).hexdigest()
    signature = SIGNER.sign_text("AWS4-HMAC-SHA256", SIGNER.timestamp, SIGNER.scope, digest)
    fields = f"Credential={KEY_ID}/{SIGNER.scope}, SignedHeaders=date;host;x-amz-content-sha256, Signature={signature}"
    headers = {**signed, "authorization": f"AWS4-HMAC-SHA256 {fields}"}
    verify(_request("GET", "/", "", headers), [SECRET], DOCUMENTED_MS)
    headers["date"] = "some day"
    with pytest.raises(S3Error, match="no date of HTTP"):
        verify(_request("GET", "/", "", headers), [SECRET], DOCUMENTED_MS)


@pytest.mark.parametrize("expires", ["0", "604801", "-1", "+5", "1_0", "1.5", "", "\u0665", "9" * 40])
def test_the_time_of_a_presigned_url_is_bounded(expires: str) -> None:
    query = SIGNER.presign("GET", "/", expires=quote(expires))
    with pytest.raises(S3Error, match="X-Amz-Expires must be") as raised:
        verify(_request("GET", "/", query, {"host": "s3.example.org"}), [SECRET], DOCUMENTED_MS)
    assert raised.value.code == "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("off_ms", "reason"), [(-SKEW_MS, ""), (-SKEW_MS - 1, "not valid yet"), (604_799_999, ""), (604_800_000, "expired")]
)
def test_a_presigned_url_holds_for_its_time(off_ms: int, reason: str) -> None:
    query = SIGNER.presign("GET", "/a", ["versionId=null"], expires="604800")
    request = _request("GET", "/a", query, {"host": "s3.example.org"})
    if not reason:
        verify(request, [SECRET], DOCUMENTED_MS + off_ms)
        return
    with pytest.raises(S3Error, match=reason) as raised:
        verify(request, [SECRET], DOCUMENTED_MS + off_ms)
    assert raised.value.code == "AccessDenied"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("X-Amz-Expires=900", "X-Amz-Expires=901", NOT_MATCHING),
        ("versionId=null", "versionId=a", NOT_MATCHING),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=host%3Brange", "AccessDenied"),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=range", "AuthorizationQueryParametersError"),
        ("&X-Amz-Expires=900", "", "AuthorizationQueryParametersError"),
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", "AuthorizationQueryParametersError"),
        ("X-Amz-Signature=", "X-Amz-Signature=0&X-Amz-Signature=", "InvalidArgument"),
        ("X-Amz-Signature=", "x-amz-signature=", "AuthorizationQueryParametersError"),
        ("versionId=null", "versionId=null&response-content-type=text%2Fhtml", NOT_MATCHING),
    ],
)
def test_a_changed_presigned_url_is_refused(old: str, new: str, code: str) -> None:
    query = SIGNER.presign("GET", "/a", ["versionId=null"])
    assert old in query
    with pytest.raises(S3Error) as raised:
        verify(_request("GET", "/a", query.replace(old, new), {"host": "s3.example.org"}), [SECRET], DOCUMENTED_MS)
    assert raised.value.code == code


def test_a_presigned_url_takes_no_unsigned_header_of_s3() -> None:
    query = SIGNER.presign("PUT", "/a")
    for name in ("x-amz-copy-source", "x-amz-content-sha256", "x-amz-meta-a"):
        request = _request("PUT", "/a", query, {"host": "s3.example.org", name: "UNSIGNED-PAYLOAD"})
        with pytest.raises(S3Error, match="is not signed"):
            verify(request, [SECRET], DOCUMENTED_MS)
