"""Limits how long a partition waits for segments on hosts that do not respond."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from lookout.errors import BadRecordError, TransientError

T = TypeVar("T")
#: seconds for which a segment is retried. Its partition commits nothing meanwhile, so this is half of the
#: 10 s for which one camera may delay another
WAIT_S: Final = 5.0
#: seconds after that in which the camera's segments are rejected without a fetch
GIVEN_UP_S: Final = 30.0
_CAMERAS: Final = 4096  # maximum number of failing cameras to remember


class AwayHosts:
    """Fetches segments by URI. If a camera's host does not respond, the camera's segments are rejected for a
    while. Only one thread at a time may fetch for a camera.

    Args:
        fetch: Fetches the bytes of a URI.
        clock: Monotonic seconds.
    """

    def __init__(self, fetch: Callable[[str], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch, self._clock = fetch, clock
        # by camera: when it began to fail, and the last attempt
        self._failing: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._given_up: OrderedDict[str, float] = OrderedDict()  # by camera: when the next attempt is due

    def fetch(self, camera: str, uri: str) -> bytes:
        """Fetch the bytes of a segment.

        Args:
            camera: The camera's id.
            uri: The segment's URI.

        Raises:
            BadRecordError: The host has been unresponsive for too long (`uri-away`), or the URI may not be
                fetched.
            TransientError: The host is not responding at the moment; retry later.
        """
        now = self._clock()
        if now < self._given_up.get(camera, now):
            raise BadRecordError(
                "uri-away", f"the camera's host does not respond; there is one attempt every {GIVEN_UP_S:g} s"
            )
        since, tried = self._failing.get(camera, (now, now))
        if now - tried > GIVEN_UP_S:  # the failure is stale: another worker had the camera in the meantime
            since = now
        try:
            value = self._fetch(uri)
        except TransientError as error:
            failed = self._clock()
            if failed - since < WAIT_S:
                self._remember(self._failing, camera, (since, failed))
                raise
            self._failing.pop(camera, None)
            self._remember(self._given_up, camera, failed + GIVEN_UP_S)
            raise BadRecordError(
                "uri-away", f"the camera's host has not responded for {WAIT_S:g} s: {error}"
            ) from error
        except BadRecordError:
            self._failing.pop(camera, None)
            raise
        self._failing.pop(camera, None)
        self._given_up.pop(camera, None)
        return value

    @staticmethod
    def _remember(cameras: OrderedDict[str, T], camera: str, what: T) -> None:
        cameras[camera] = what
        while len(cameras) > _CAMERAS:
            cameras.popitem(last=False)
