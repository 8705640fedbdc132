"""The base of the local Kafka and Redis servers: a fixed address, start, stop, kill and restart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_incrementing

from lookout.disk import private_folder
from lookout.local.processes import (
    Child,
    PortTakenError,
    free_ports,
    port_is_free,
    remove_scratch,
    scratch_folder,
)

HOST = "127.0.0.1"

_ATTEMPTS = 5


class Startable(ABC):
    """A resource that a `with` block starts and closes; it is also closed if the start fails."""

    @abstractmethod
    def start(self) -> Self:
        """Start, and return when it is ready for use."""

    @abstractmethod
    def close(self) -> None:
        """Stop, and clean up."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalServer(Startable):
    """A server on this machine that can be stopped, killed and started again at the same address.

    Args:
        folder: Folder for data and log; None: a temporary folder that `close` removes.
        port: The client port; None: a free port.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path | None = None, *, port: int | None = None) -> None:
        self._temporary = folder is None
        self.folder = folder or scratch_folder(self.name.lower())
        private_folder(self.folder)
        self._given_port = port
        self.port = 0
        self._child: Child | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name.lower()}.log"

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    def start(self) -> Self:
        """Start the server unless it runs, and wait until it answers.

        The first start chooses a free port, and a different one if another process takes the port in the
        meantime. Later starts keep the port, because clients know it.

        Raises:
            LocalError: The server did not start; the message contains the end of its log.
        """
        if self.alive:
            return self
        may_choose = self.port == 0 and self._given_port is None
        tries = Retrying(
            stop=stop_after_attempt(1 if self._given_port is not None else _ATTEMPTS),
            wait=wait_incrementing(0.2, 0.2),
            retry=retry_if_exception_type(PortTakenError),
            reraise=True,
        )
        tries(self._start_once, may_choose)
        return self

    def _start_once(self, may_choose: bool) -> None:
        try:
            self._take_port(may_choose)
            self._child = self._launch()
            self._await_ready(self._child)
        except BaseException:
            self.kill()
            raise

    def stop(self, patience: float = 20.0) -> None:
        """Send SIGTERM and wait (SIGKILL after `patience` seconds). The next `start` uses the same
        address."""
        if self._child is not None:
            self._child.stop(patience)
            self._child = None

    def kill(self) -> None:
        """Send SIGKILL. The next `start` uses the same address."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop, and remove the folder if it is a temporary one."""
        self.stop()
        if self._temporary:
            remove_scratch(self.folder)

    def _take_port(self, may_choose: bool) -> None:
        if may_choose:
            (self.port,) = free_ports(1, HOST)
        elif self.port == 0:
            self.port = self._given_port or 0
        if not port_is_free(self.port, HOST):
            raise PortTakenError(
                f"{self.name} cannot use port {self.port}, because another process uses it: "
                "choose another port, or give none"
            )

    @abstractmethod
    def _launch(self) -> Child:
        """Start the process for `self.port`."""

    @abstractmethod
    def _await_ready(self, child: Child) -> None:
        """Wait until the server answers. Raise PortTakenError or LocalError if it will never answer."""
