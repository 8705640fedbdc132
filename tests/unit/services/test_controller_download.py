"""A model's archive is used only if it is the right one and stays inside its folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from lookout.services.controller.download import DownloadError, fetch, unpack


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
