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

#: seconds between two announcements of a member
ANNOUNCE_S: Final = 600.0

Step = Callable[[Erasure], int]
"""Erases a range in one place and returns how many items it erased. May be called again for the same
erasure."""


class Eraser:
    """Runs the steps of every erasure that this process has not confirmed, in their order.

    If a step fails, it is run again in the next round, with those after it: an erasure is confirmed only
    after all of its steps. Since steps may be repeated, a process that is killed continues at its next start.

    Args:
        read: Returns what the topic says now.
        publish: Writes a record (None deletes) and returns when Kafka has it.
        instance: Name of this process.
        service: Name of its service.
        steps: Functions that erase a range in one place, by the place's name.
        stays: Whether the process leaves data behind, on a disk; it then stays a member after its end.
        signer: Signs confirmations.
        clock: Unix seconds.
        round_s: Seconds between two rounds.
        lost: Returns the records that should be in the topic and are not; they are written again.
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
        """Number of erasures that this process has not carried out."""
        self.failed = 0
        """Number of steps that failed; they are run again."""

    def join(self) -> None:
        """Become a member, and carry out what was requested while this process was away.

        Call it before anything is served, so that nobody reads what is to be erased.
        """
        self._announce()
        self.round()

    def start(self, supervisor: Supervisor | None = None) -> None:
        """Start to follow the topic."""
        self._thread = (supervisor or Supervisor()).start("erasures", self._run)

    def stop(self) -> None:
        """Stop; a process that leaves nothing behind stops being a member."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        if not self._stays:
            self._announce(left=True)
            self._publish(member_key(self._instance), None)

    def _announce(self, *, left: bool = False) -> None:
        """Announce that this process is a member, or no longer one."""
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

    def _keep_standing(self) -> None:
        """Announce this process from time to time, and write again the records that somebody deleted or
        replaced."""
        if self._clock() - self._announced_s >= ANNOUNCE_S:
            self._announce()
        lost = self._lost()
        if lost:
            _log.warning("records were deleted or replaced: they are written again", keys=len(lost))
        for key, value in lost.items():
            self._publish(key, value)

    def _carry_out(self, erasure: Erasure) -> list[ErasedPart] | None:
        parts = []
        for name, step in self._steps.items():
            try:
                parts.append(ErasedPart(what=name, count=step(erasure)))
            except Exception as error:
                self.failed += 1
                _log.warning("a range is not erased yet", erasure=erasure.id, where=name, error=str(error))
                return None
        return parts

    def _run(self) -> None:
        while not self._stopped.wait(self._round_s):
            try:
                self.round()
                self._keep_standing()
            except Exception as error:
                self.failed += 1
                _log.warning("erasures cannot be confirmed now", error=str(error))
