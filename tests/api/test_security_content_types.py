"""Attacks by what an object says that it is: a line break in it would end a header, or break off the answer of every
read, for ever.
"""

from __future__ import annotations

import pytest

from refstore.core import ids
from refstore.errors import Invalid
from refstore.operations.upload import Link, Stage, Upload
from tests.api.service import Application
from tests.api.test_limits import READ, UPLOAD

BACKING = "/repositories/alpha/branches/main/staging/backing"
OUTSIDE = "s3://elsewhere/x"
HOSTILE = [
    "text/plain\r\n;x",
    "text/plain\n;x",
    "text/plain\u2028;x",
    "text/plain\x85;x",
    "text/plain;\r\nX-Evil: 1",
    "text/plain;\0",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_content_type_with_a_line_break_is_refused_however_it_comes(alpha: Application, hostile: str) -> None:
    issued = alpha("GET", BACKING, params={"path": "p"}).json()
    alpha.lake.repository("alpha").context.objects.put(
        ids.own_address("data/" + issued["physical_address"].partition("/data/")[2][:37]), b"x"
    )
    link = {"staging": {"token": issued["token"]}, "checksum": "c", "size_bytes": 1, "content_type": hostile}
    stage = {"physical_address": OUTSIDE, "checksum": "c", "size_bytes": 1, "content_type": hostile}
    form = (
        b'--b\r\nContent-Disposition: form-data; name="content"\r\nContent-Type: '
        + hostile.encode()
        + b"\r\n\r\nx\r\n--b--\r\n"
    )
    said = [
        alpha("PUT", BACKING, params={"path": "p"}, json=link),
        alpha("PUT", UPLOAD, params={"path": "p"}, json=stage),
        alpha("POST", UPLOAD, params={"path": "p"}, content=b"x", headers=[(b"content-type", hostile.encode())]),
    ]
    assert [answered.status_code for answered in said] == [400] * 3
    by_form = alpha(
        "POST", UPLOAD, params={"path": "f"}, content=form, headers={"content-type": "multipart/form-data; boundary=b"}
    )
    if by_form.status_code != 400:  # what follows a line break there is another header of the part
        assert ids.is_content_type(by_form.json()["content_type"])
    repo = alpha.lake.repository("alpha")
    for attempt in (
        lambda: repo.upload("main", "p", b"x", content_type=hostile),
        lambda: list(repo.upload_many("main", [Upload(path="p", body=b"x", content_type=hostile)])),
        lambda: list(repo.stage_many("main", [Stage(path="p", url=OUTSIDE, size_bytes=1, content_type=hostile)])),
        lambda: list(repo.link_many("main", [Link(path="p", token=issued["token"], content_type=hostile)])),
    ):
        with pytest.raises(Invalid, match="content type"):
            attempt()
    assert [item.path for item in repo.list("main")] in ([], ["f"])


@pytest.mark.parametrize("hostile", HOSTILE)
def test_an_old_object_with_such_a_content_type_can_be_read(
    alpha: Application, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = alpha.lake.repository("alpha")
    with monkeypatch.context() as older:
        older.setattr(ids, "content_type", str)
        repo.upload("main", "p", b"body", content_type=hostile)
    repo.commit("main", "history keeps it")
    repo.copy("main", "p", to_branch="main", to_path="q")
    for path in ("p", "q"):
        answered = alpha("GET", READ, params={"path": path})
        assert (answered.status_code, answered.content) == (200, b"body")
        assert answered.headers["content-type"] == "application/octet-stream"
        assert "x-evil" not in answered.headers
        assert alpha("HEAD", READ, params={"path": path}).headers["content-type"] == "application/octet-stream"
        assert alpha("GET", READ + "/stat", params={"path": path}).json()["content_type"] == "application/octet-stream"
