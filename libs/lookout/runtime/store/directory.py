"""The directory: an index in Redis of the pods that hold each tensor. It may be lost at any time.

Keys (after `LOOKOUT_PREFIX`; the part in braces is the hash tag, so that every script touches one slot):

- `lookout:{camera}:stage:topic/partition/offset`: hash of pod -> epoch, one for each input record and stage,
  with a TTL
- `lookout:{pods:stage}:lease:pod`: JSON of epoch, address, owner and start, with a TTL; a holder counts only
  while its lease lives with the epoch of its entry
- `lookout:{pods:stage}:epoch:pod`: the last epoch given out
- `lookout:{pods:stage}:roster`: hash of pod -> address
"""

import contextlib
import json
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

import redis
import structlog

from lookout.runtime.net import RedisSecurity, without_security
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.net.redis_values import Kind, with_types
from lookout.runtime.store.errors import DirectoryDownError
from lookout.runtime.store.labels import entry_of, stage_keys
from lookout.runtime.store.settings import StoreSettings
from lookout.runtime.store.signing import AddressSigner
from lookout.runtime.worker import Supervisor
from lookout.text import clean
from lookout.v1.lineage_pb2 import TensorRef

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_DAY_MS = 86_400_000
# Maximum number of announcements per pipeline, because its commands and answers are held in memory.
_BATCH = 256
_STRANGERS = 1000
_REMEMBER_S = 3600.0  # how long a stage's addresses stay usable while the directory is unavailable


def _script(name: str) -> str:
    return resources.files("lookout.runtime.store").joinpath("scripts", f"{name}.lua").read_text()


_CLAIM = _script("claim")
_ANNOUNCE = _script("announce")
_WITHDRAW = _script("withdraw")
_RELEASE = _script("release")


@dataclass(frozen=True, slots=True)
class Holder:
    """A live pod that says it holds a tensor."""

    pod: str
    epoch: int
    address: str


def _pods(stage: int, what: str) -> str:
    return f"{stage_keys(stage)}{{pods:{stage}}}:{what}"


class Directory:
    """Reads the index. Thread-safe. After a failure, Redis is not asked again for `redis_retry_s` seconds."""

    def __init__(
        self,
        url: str,
        settings: StoreSettings,
        security: RedisSecurity | None = None,
        signer: AddressSigner | None = None,
    ) -> None:
        self.settings = settings
        self.signer = signer or AddressSigner(None)
        self.client: redis.Redis = (security or without_security()).redis_client(
            url,
            decode_responses=True,
            socket_timeout=settings.redis_timeout_s,
            socket_connect_timeout=settings.redis_timeout_s,
            # No pings and no retries by the client: a failed call counts as an answer, and `redis_retry_s`
            # decides when Redis is asked again.
            health_check_interval=0,
            retry=None,
        )
        self._withdraw = self.client.register_script(_WITHDRAW)
        self._down_until = 0.0
        self._closed = False
        self._strangers: set[str] = set()  # pods whose leases were ignored; each is logged once
        self._seen: dict[int, dict[str, float]] = defaultdict(dict)  # stage -> address -> when

    def find(self, ref: TensorRef) -> list[Holder]:
        """Return the live holders of the tensor's entry; entries of dead ones are removed.

        Raises:
            DirectoryDownError: Redis does not answer.
        """
        return self.asking(lambda: self._find(entry_of(ref), ref.stage))

    def replicas(self, stage: int) -> list[str]:
        """Return the gRPC addresses of a stage's live pods; if Redis is down or was wiped, the addresses seen
        earlier.
        """
        with contextlib.suppress(DirectoryDownError):
            if live := self.asking(lambda: self._roster(stage)):
                return live
        oldest = time.monotonic() - _REMEMBER_S
        recent = {address: when for address, when in self._seen[stage].copy().items() if when > oldest}
        self._seen[stage] = recent
        return sorted(recent)

    def asking(self, ask: Callable[[], T], retry: bool = False) -> T:
        """Run a Redis call, and turn any failure of Redis into DirectoryDownError. `retry`: ask even if Redis
        has just failed.
        """
        if not retry and time.monotonic() < self._down_until:
            raise DirectoryDownError("the directory failed a moment ago")
        try:
            answer = ask()
        except REDIS_ERRORS as error:
            if not self._down_until:
                _log.warning(
                    "the directory does not answer: tensors are recomputed by lineage", error=str(error)
                )
            self._down_until = time.monotonic() + self.settings.redis_retry_s
            raise DirectoryDownError(f"the directory does not answer: {error}") from error
        except ValueError as error:  # raised by redis-py when another thread closes the connection
            if not self._closed:
                raise
            raise DirectoryDownError("the directory is closed, because this process is ending") from error
        if self._down_until:
            _log.info("the directory answers again")
            self._down_until = 0.0
        return answer

    def close(self) -> None:
        """Close the connections. Running calls end with DirectoryDownError."""
        self._closed = True
        self.client.close()

    def _find(self, entry: str, stage: int) -> list[Holder]:
        kinds: dict[str, Kind] = {entry: "hash"}
        lines: dict[str, str] = with_types(self.client, kinds, lambda: self.client.hgetall(entry))
        if not lines:
            return []
        leases = self._leases(stage, list(lines))
        holders = []
        for pod, epoch in lines.items():
            lease = leases.get(pod)
            if lease is not None and str(lease["epoch"]) == epoch:
                holders.append(Holder(pod, int(epoch), str(lease["address"])))
                # Remembered for `replicas`, which needs addresses while Redis is down.
                self._seen[stage][holders[-1].address] = time.monotonic()
            else:
                self._withdraw(keys=[entry], args=[pod, epoch])
        return holders

    def _roster(self, stage: int) -> list[str]:
        key = _pods(stage, "roster")
        pods: list[str] = with_types(self.client, {key: "hash"}, lambda: self.client.hkeys(key))
        leases = self._leases(stage, pods)
        if dead := [pod for pod in pods if pod not in leases]:
            self.client.hdel(_pods(stage, "roster"), *dead)
        live = sorted(str(lease["address"]) for lease in leases.values())
        self._seen[stage].update(dict.fromkeys(live, time.monotonic()))
        return live

    def _leases(self, stage: int, pods: Sequence[str]) -> dict[str, dict[str, Any]]:
        if not pods:
            return {}
        keys = [_pods(stage, f"lease:{pod}") for pod in pods]
        # One round trip: the keys of a stage share a hash tag, so a cluster has them on one node.
        values: list[str | None] = self.client.mget(keys)  # type: ignore[assignment]
        leases = {}
        for pod, value in zip(pods, values, strict=True):
            if value is not None and (lease := self._lease(stage, pod, value)) is not None:
                leases[pod] = lease
        return leases

    def _lease(self, stage: int, pod: str, value: str) -> dict[str, Any] | None:
        """Parse a lease; None if this fleet did not write it, because others may write to Redis, too."""
        try:
            lease = json.loads(value)
            address = self.signer.check(stage, pod, str(lease["address"]))
            if address is not None:
                return {**lease, "epoch": int(lease["epoch"]), "address": address}
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        if pod not in self._strangers:
            self._strangers.add(pod)
            _log.warning("a lease without this fleet's signature is ignored", pod=clean(pod), stage=stage)
            if len(self._strangers) > _STRANGERS:
                self._strangers.clear()
        return None


class Announcer:
    """Keeps a holder's lease and announces what it holds, again if the directory lost its entries.

    It is the `holdings` of a TensorStore; `lines` returns everything that is held. An outage of Redis is not
    an error: what could not be announced is announced once Redis answers again.
    """

    def __init__(
        self,
        directory: Directory,
        stage: int,
        pod: str,
        address: str,
        lines: Callable[[], Sequence[str]],
        *,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.directory = directory
        self.stage, self.pod, self.address = stage, pod, address
        self.epoch = 0  # 0: no lease
        self._lines = lines
        self._owner = uuid.uuid4().hex
        self._started = time.time()
        self._last = 0  # the last epoch this process had
        self._behind = False  # an announcement failed
        self._announced_at = 0.0
        self._wake = threading.Event()
        self._ended = False
        self._claiming = threading.Lock()
        client = directory.client
        self._claim = client.register_script(_CLAIM)
        self._withdraw = client.register_script(_WITHDRAW)
        self._release = client.register_script(_RELEASE)
        self._supervisor = supervisor or Supervisor()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Claim the lease if Redis answers, and renew it until `stop`."""
        self.renew()
        self._thread = self._supervisor.start("lease", self._run)

    def stop(self) -> None:
        """Release the lease, so that nobody asks this pod any more."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        keys = [_pods(self.stage, f"lease:{self.pod}"), _pods(self.stage, "roster")]
        try:
            self.directory.asking(lambda: self._release(keys=keys, args=[self.pod, self._owner]), retry=True)
        except DirectoryDownError as error:
            _log.info("the lease could not be released; it will expire", pod=self.pod, error=str(error))
        self.epoch = 0

    def held(self, entry: str) -> None:
        """Announce an entry, because the store now holds tensors of it."""
        self._say([entry])

    def dropped(self, entry: str) -> None:
        """Withdraw an entry, because the store no longer holds tensors of it."""
        epoch = self.epoch
        if not epoch:
            return
        with contextlib.suppress(DirectoryDownError):  # without the entry, readers have the tensor recomputed
            self.directory.asking(lambda: self._withdraw(keys=[entry], args=[self.pod, epoch]))

    def renew(self) -> bool:
        """Renew the lease or claim a new one; announce everything again before entries expire, or if the
        directory may have lost them.

        Returns:
            Whether Redis answered.
        """
        with self._claiming:
            try:
                new = self._renew()
            except DirectoryDownError:
                self.epoch = 0
                return False
            # After a third of an entry's life, so that two renewals may fail before it expires.
            due = time.monotonic() - self._announced_at > self.directory.settings.entry_s / 3
            # A new lease has a new epoch, and entries with the old epoch do not count, so everything is
            # announced again.
            if self.epoch and (new or due or self._behind):
                self._behind = False
                self._announced_at = time.monotonic()
                self._say(self._lines())
            return True

    def _renew(self) -> bool:
        keys = [_pods(self.stage, f"{kind}:{self.pod}") for kind in ("lease", "epoch")]
        keys.append(_pods(self.stage, "roster"))
        lease_ms = int(self.directory.settings.lease_s * 1000)
        started = f"{self._started:.6f}"
        address = self.directory.signer.sign(self.stage, self.pod, self.address)
        args: list[str | int] = [self.pod, self._owner, address, started, self._last, lease_ms, _DAY_MS]
        epoch, new = self.directory.asking(lambda: self._claim(keys=keys, args=[*args]), retry=True)
        if not epoch:
            if self.epoch:
                _log.warning("another process uses this instance's name", pod=self.pod, its_epoch=new)
            self.epoch = 0
            return False
        self.epoch = self._last = int(epoch)
        return bool(new)

    def _say(self, entries: Sequence[str]) -> None:
        epoch = self.epoch
        if not epoch:
            return  # everything is announced with the next lease
        ttl = int(self.directory.settings.entry_s * 1000)

        def batch(chunk: Sequence[str]) -> None:
            with self.directory.client.pipeline(transaction=False) as pipe:
                for entry in chunk:
                    # The full script is sent, because pipelines in a cluster cannot refer to scripts by
                    # digest.
                    pipe.execute_command("EVAL", _ANNOUNCE, 1, entry, self.pod, epoch, ttl)  # type: ignore[no-untyped-call]
                pipe.execute()

        try:
            for start in range(0, len(entries), _BATCH):
                chunk = entries[start : start + _BATCH]
                self.directory.asking(lambda chunk=chunk: batch(chunk))  # type: ignore[misc]
        except DirectoryDownError:
            self._behind = True

    def _run(self) -> None:
        lease_s = self.directory.settings.lease_s
        while not self._ended:
            # Random, so that pods that started together do not all renew at the same time.
            wait = lease_s / 3 * random.uniform(0.8, 1.0) if self.epoch else min(lease_s / 3, 1.0)
            if self._wake.wait(wait):
                return
            self.renew()
