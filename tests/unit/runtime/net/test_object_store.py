"""Credentials of an object store in files that change, against a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError

from lookout.runtime.net import object_store
from lookout.runtime.net.object_store import open_store
from tests.s3_server import ACCESS, BUCKET, S3Server

URL = f"s3://{BUCKET}"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server whose credentials are in two files, as a mounted secret has them."""
    with S3Server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            if not name.startswith(("AWS_ACCESS", "AWS_SECRET")):
                monkeypatch.setenv(name, value)
        (tmp_path / "access-key").write_text(ACCESS)
        (tmp_path / "secret-key").write_text(server.secret + "\n")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID_FILE", str(tmp_path / "access-key"))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY_FILE", str(tmp_path / "secret-key"))
        monkeypatch.setenv("AWS_MAX_RETRIES", "0")
        yield server


@pytest.mark.long
def test_a_store_that_is_open_follows_the_files(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "FRESH", timedelta())
    store = open_store(URL)
    obstore.put(store, "a", b"1")
    server.kill()
    server.secret = "another-secret"
    server.start()
    with pytest.raises(BaseError, match=r"Signature|403"):
        obstore.put(store, "b", b"2")
    (tmp_path / "secret-key").write_text("another-secret\n")
    obstore.put(store, "b", b"2")
    assert bytes(obstore.get(store, "b").bytes()) == b"2"


@pytest.mark.long
def test_a_file_that_is_gone_is_named(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "secret-key").unlink()
    with pytest.raises(BaseError, match=r"AWS_SECRET_ACCESS_KEY_FILE=.*secret-key"):
        obstore.put(open_store(URL), "a", b"1")


def test_one_file_without_the_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID_FILE", "/etc/lookout/object-store/access-key")
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY_FILE go together"):
        open_store(URL)
