"""Carries out erasures in one process, and confirms them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from lookout.past.erasures.records import ErasureLog, confirmation_key, member_key
from lookout.past.erasures.signing import ErasureSigner
from lookout.runtime.worker import Supervisor
from lookout.v1.erasures_pb2 import ErasedPart, Erasure, ErasureConfirmation, ErasureMember
from lookout.wire import to_json

_log = structlog.get_logger(__name__)

#: seconds between a member's announcements
ANNOUNCE_S: Final = 600.0

Step = Callable[[Erasure], int]
"""Erases an erasure's range in one place and returns the number of erased items. It may be called again for
the same erasure."""


class Eraser:
    """Carries out every erasure that this process has not confirmed, by running its steps in order.

    An erasure is confirmed only after all of its steps. If a step fails, or the process is killed, all steps
    are run again in the next round or after the next start.

    Args:
        read: Returns the current content of the topic.
        publish: Writes a record, or deletes it if the value is None; returns when Kafka has stored it.
        instance: Name of this process.
        service: Name of its service.
        steps: Functions that erase a range in one place, by the place's name.
        stays: Whether data remain on a disk when the process ends; the process then stays a member.
        signer: Signs announcements and confirmations; None: they are not signed.
        clock: Unix seconds.
        round_s: Seconds between two rounds.
        lost: Returns the records that should be in the topic but are not, by key; they are written again.
    """

    def __init__(
        self,
        read: Callable[[], ErasureLog],
        publish: Callable[[str, bytes | None], None],
        instance: str,
        service: str,
        steps: Mapping[str, Step],
        *,
        stays: bool = True,
        signer: ErasureSigner | None = None,
        clock: Callable[[], float] = time.time,
        round_s: float = 1.0,
        lost: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        self._read, self._publish = read, publish
        self._instance, self._service, self._steps = instance, service, dict(steps)
        self._stays, self._clock, self._round_s = stays, clock, round_s
        self._signer = signer or ErasureSigner(None)
        self._lost = lost
        self._since_us = int(clock() * 1e6)
        self._announced_s = float("-inf")
        self._stopped = threading.Event()
        self._confirmed: set[str] = set()
        self._thread: threading.Thread | None = None
        self.open = 0
        """Number of erasures that this process has not yet carried out."""
        self.failed = 0
        """Number of failed steps and rounds; they are repeated."""

    def join(self) -> None:
        """Become a member, and carry out the erasures requested while this process was not running.

        Call it before serving anything, so that nobody can read what must be erased.
        """
        self._announce()
        self.round()

    def start(self, supervisor: Supervisor | None = None) -> None:
        """Start the thread that carries out new erasures."""
        self._thread = (supervisor or Supervisor()).start("erasures", self._run)

    def stop(self) -> None:
        """Stop the thread. If no data remain on a disk, also end this process's membership."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        if not self._stays:
            self._announce(left=True)
            self._publish(member_key(self._instance), None)

    def _announce(self, *, left: bool = False) -> None:
        """Announce that this process is a member or, with `left`, that it no longer is."""
        now_s = self._clock()
        member = ErasureMember(
            instance=self._instance,
            service=self._service,
            since_us=self._since_us,
            announced_us=int(now_s * 1e6),
            left=left,
        )
        self._signer.sign(member)
        self._publish(member_key(self._instance), to_json(member))
        self._announced_s = now_s

    def round(self) -> int:
        """Carry out the open erasures.

        Returns:
            The number of erasures confirmed.
        """
        log, count = self._read(), 0
        waiting = [
            erasure
            for erasure in log.erasures.values()
            if erasure.id not in self._confirmed and self._instance not in log.confirmed(erasure.id)
        ]
        self.open = len(waiting)
        for erasure in waiting:
            parts = self._carry_out(erasure)
            if parts is None:
                continue
            confirmation = ErasureConfirmation(
                erasure=erasure.id,
                instance=self._instance,
                service=self._service,
                confirmed_us=int(self._clock() * 1e6),
                parts=parts,
                camera=erasure.camera,
                begin_us=erasure.begin_us,
                end_us=erasure.end_us,
            )
            self._signer.sign(confirmation)
            self._publish(confirmation_key(erasure.id, self._instance), to_json(confirmation))
            self._confirmed.add(erasure.id)
            self.open -= 1
            count += 1
        return count

    def _maintain_records(self) -> None:
        """Repeat this process's announcement when it is due, and write deleted or replaced records again."""
        if self._clock() - self._announced_s >= ANNOUNCE_S:
            self._announce()
        lost = self._lost()
        if lost:
            _log.warning("records of erasures were deleted or replaced; writing them again", keys=len(lost))
        for key, value in lost.items():
            self._publish(key, value)

    def _carry_out(self, erasure: Erasure) -> list[ErasedPart] | None:
        """Run all steps of an erasure. Returns what was erased in each place; None if a step failed."""
        parts = []
        for name, step in self._steps.items():
            try:
                parts.append(ErasedPart(what=name, count=step(erasure)))
            except Exception as error:
                self.failed += 1
                _log.warning(
                    "a range could not be erased yet", erasure=erasure.id, where=name, error=str(error)
                )
                return None
        return parts

    def _run(self) -> None:
        while not self._stopped.wait(self._round_s):
            try:
                self.round()
                self._maintain_records()
            except Exception as error:
                self.failed += 1
                _log.warning("erasures could not be confirmed; trying again", error=str(error))
