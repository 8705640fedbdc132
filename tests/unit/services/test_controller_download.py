"""A model's archive is used only if it is the right one and stays inside its folder."""

from __future__ import annotations

import hashlib
import io
import ssl
import tarfile
import threading
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lookout.services.controller.download import DownloadError, fetch, unpack
from tests.certificates import Authority


def archive(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        entry.size = 0 if link else 4
        tar.addfile(entry, None if link else io.BytesIO(b"data"))
    buffer.seek(0)
    return buffer


def test_files_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Python 3.11.2 too, whose `extractall` takes no filter."""
    monkeypatch.delattr(tarfile.TarFile, "extractall")
    unpack(archive("model/config.json"), tmp_path)
    assert (tmp_path / "model/config.json").read_bytes() == b"data"


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../outside", tarfile.REGTYPE, ""),
        ("../outside", tarfile.DIRTYPE, ""),
        ("/etc/outside", tarfile.REGTYPE, ""),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc/passwd"),
        ("hard", tarfile.LNKTYPE, "../../outside"),
    ],
)
def test_an_archive_that_leaves_its_folder_is_refused(
    tmp_path: Path, name: str, kind: bytes, link: str
) -> None:
    with pytest.raises(DownloadError):
        unpack(archive(name, kind, link), tmp_path)
    assert not list(tmp_path.parent.glob("outside"))


def test_other_bytes_and_other_schemes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="not a usable tar"):
        unpack(io.BytesIO(b"nothing"), tmp_path)
    whole = archive("model/config.json").getvalue()
    with pytest.raises(DownloadError, match="not a usable tar"):
        unpack(io.BytesIO(whole[: len(whole) // 2]), tmp_path)
    with pytest.raises(DownloadError, match="https"):
        fetch("file:///etc/passwd", "0" * 64, tmp_path)


def test_a_checkpoint_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / ".sha256").write_text("a" * 64)
    fetch("https://nowhere.invalid/secret-signature", "a" * 64, tmp_path)


def served(folder: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> str:
    """Address of an archive with these files, on an https server of a real authority."""
    with tarfile.open(folder / "model.tar.gz", mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    certificates = Authority().write(folder / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates["grpc_ca_file"]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["grpc_cert_file"], certificates["grpc_key_file"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return f"https://127.0.0.1:{server.server_port}/model.tar.gz"


@pytest.mark.parametrize("weights", [True, False])
def test_weights_are_left_out_where_they_are_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: bool
) -> None:
    files = {"config.json": b"{}", "model.safetensors": bytes(1 << 20), "processor/vocab.txt": b"a"}
    (tmp_path / "www").mkdir()
    target = tmp_path / "model"
    target.mkdir()
    with ExitStack() as stack:
        url = served(tmp_path / "www", files, monkeypatch, stack)
        digest = hashlib.sha256((tmp_path / "www/model.tar.gz").read_bytes()).hexdigest()
        with pytest.raises(DownloadError, match="not used"):
            fetch(url, "0" * 64, target, weights=weights)
        assert list(target.iterdir()) == []
        for _ in range(2):  # the second finds it there
            fetch(url, digest, target, weights=weights)
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {".sha256", "config.json", "processor/vocab.txt"} | (
        {"model.safetensors"} if weights else set()
    )
