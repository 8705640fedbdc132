"""A real Redis that speaks TLS: Debian's package, unpacked into the user's cache; nothing is installed.

The redis-server that comes as a wheel is built without TLS.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from lookout.local import RedisServer, free_ports

_PACKAGES = ("redis-tools", "libjemalloc2", "liblua5.1-0", "liblzf1", "lua-bitop", "lua-cjson")
#: what every Debian has, and the loader finds itself
_SYSTEM = re.compile(r"(ld-linux|libc|libm|libdl|libpthread|librt)\b")
_START = '#!/bin/sh\nhere=$(dirname "$0")\nLD_LIBRARY_PATH="$here/lib" exec "$here/server" "$@"\n'


def tls_redis() -> Path | None:
    """A folder with ``redis-server`` and its libraries; None: this machine has no Debian packages."""
    folder = user_cache_path("lookout") / "tls-redis"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists() and not _unpack(folder):
            return None
    return folder


def _unpack(folder: Path) -> bool:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    root = part / "root"
    root.mkdir(parents=True)
    download = ["apt-get", "download", "-qq", *_PACKAGES]
    if subprocess.run(download, cwd=part, check=False, capture_output=True).returncode:
        return False
    for package in sorted(part.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    ready = part / "ready"
    (ready / "lib").mkdir(parents=True)
    shutil.copy(root / "usr/bin/redis-check-rdb", ready / "server")  # one program under several names
    for library in _libraries(ready / "server", root):
        shutil.copy(library, ready / "lib" / library.name)
    start = ready / "redis-server"
    start.write_text(_START)
    start.chmod(0o755)
    ready.rename(folder)
    shutil.rmtree(part)
    return True


def _libraries(program: Path, root: Path) -> list[Path]:
    """The libraries that a program is linked with, those of ``root`` first."""
    own = ":".join(str(path.parent) for path in sorted(root.rglob("*.so*")))
    listed = subprocess.run(
        ["ldd", str(program)], env={"LD_LIBRARY_PATH": own}, check=True, capture_output=True, text=True
    ).stdout
    found = re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)
    return [Path(path) for name, path in found if not _SYSTEM.match(name)]


class TlsRedis(RedisServer):
    """A server with a second port that asks for client certificates.

    Args:
        folder: Of its log and configuration.
        files: Certificate, key and authority, as `tests.certificates.Authority.write` gives them.
    """

    def __init__(self, folder: Path, files: dict[str, Path]) -> None:
        port, self.tls_port = free_ports(2)
        super().__init__(folder, port=port)
        self.files = files

    @property
    def options(self) -> dict[str, object]:
        """As a server's, and TLS."""
        return {
            **super().options,
            "tls-port": self.tls_port,
            "tls-cert-file": self.files["grpc_cert_file"],
            "tls-key-file": self.files["grpc_key_file"],
            "tls-ca-cert-file": self.files["grpc_ca_file"],
            "tls-auth-clients": "yes",
        }
