"""Strange entries in Redis, by one who may write there."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from typing import Any, Final

import redis

from tests import mutations
from tests.acceptor import Acceptor
from tests.fleet.strangers.tally import Door, Tally

_MANY, _FEW = 40, 4
_STAGES: Final = (1, 2)  # frames, tokens
_MARK: Final = "0" * 64

Chance = random.Random


class Listener:
    """A stranger's server: it keeps every byte that is sent to it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._acceptor = Acceptor(self._read, silence_s=5.0)
        self.address = self._acceptor.address
        self.close = self._acceptor.close

    def _read(self, connection: socket.socket) -> None:
        # A server of HTTP/2 speaks first: without its settings a caller sends no metadata.
        connection.sendall(b"\0\0\0\x04\0\0\0\0\0")
        while data := connection.recv(65536):
            self.received.append(data)


def door(client: Any, pods: list[str], listener: Listener, chance: Chance, tally: Tally) -> Door:
    """The directory.

    Args:
        client: Of Redis; closed with the door.
        pods: Instances of the fleet.
        listener: The stranger's server that entries name.
        chance: Of every choice.
        tally: Of inputs.
    """

    def pod_key(what: str) -> str:
        return f"lookout:{{pods:{chance.choice(_STAGES)}}}:{what}"

    def entry() -> str:
        camera = chance.choice(("cam-00", "cam-01", "strange-1"))
        return f"lookout:{{{camera}}}:{chance.choice(_STAGES)}:camera.segments.v1/0/{chance.randrange(200)}"

    def some_entry() -> str:
        keys = client.keys("lookout:{cam-*")
        return chance.choice(keys).decode() if keys else entry()

    def lease(pod: str, text: str) -> None:
        client.set(pod_key(f"lease:{pod}"), text, px=20_000)
        client.hset(pod_key("roster"), pod, listener.address)
        client.hset(entry(), pod, "7")

    def stranger_s_lease(pod: str, **more: Any) -> None:
        fields = {"epoch": 7, "address": listener.address, "owner": "x", "started": 1.0}
        lease(pod, json.dumps({**fields, **more}))

    def wrong_type(key: str) -> None:
        client.delete(key)
        chance.choice(
            (lambda: client.rpush(key, "a"), lambda: client.set(key, "a"), lambda: client.sadd(key, "a"))
        )()

    def stolen() -> None:
        """A signed lease of the fleet with the stranger's address in it, under another name."""
        for key in client.keys("lookout:{pods:*}:lease:*"):
            try:
                held = json.loads(client.get(key) or b"null")
                mark = str(held["address"]).partition(" ")[2]
            except (ValueError, TypeError, KeyError, RecursionError, redis.ResponseError):
                continue
            stranger_s_lease("thief", address=f"{listener.address} {mark}")

    ways: dict[str, tuple[Callable[[], Any], int]] = {
        "lease-without-signature": (lambda: stranger_s_lease(f"evil-{chance.randrange(9)}"), _MANY),
        "lease-with-wrong-signature": (
            lambda: stranger_s_lease("evil", address=f"{listener.address} {_MARK}"),
            _MANY,
        ),
        "lease-with-stolen-signature": (stolen, _MANY),
        "lease-of-an-honest-pod": (lambda: stranger_s_lease(chance.choice(pods)), _MANY),
        "lease-from-the-future": (lambda: stranger_s_lease(chance.choice(pods), started=1e300), _FEW),
        "lease-no-json": (
            lambda: lease(
                chance.choice((*pods, "evil")), chance.choice(("[" * 5000, "7", "no", "", '"a"', "null"))
            ),
            _MANY,
        ),
        "lease-strange-values": (
            lambda: stranger_s_lease("evil", epoch=chance.choice((1e300, "x", None, -1, [])), owner=[[]]),
            _MANY,
        ),
        "lease-strange-text": (
            lambda: stranger_s_lease(chance.choice(mutations.TEXTS), address=chance.choice(mutations.TEXTS)),
            _MANY,
        ),
        "large-lease": (lambda: lease("evil", "x" * 1_000_000), _FEW),
        "lease-of-wrong-type": (lambda: wrong_type(pod_key(f"lease:{chance.choice(pods)}")), _FEW),
        "roster-of-wrong-type": (lambda: wrong_type(pod_key("roster")), _FEW),
        "epoch-of-wrong-type": (lambda: wrong_type(pod_key(f"epoch:{chance.choice(pods)}")), _FEW),
        "epoch-no-number": (
            lambda: client.set(
                pod_key(f"epoch:{chance.choice(pods)}"), chance.choice(("x", "1e999", "9" * 400))
            ),
            _FEW,
        ),
        "entry-of-wrong-type": (lambda: wrong_type(some_entry()), _MANY),
        "entry-strange-values": (
            lambda: client.hset(some_entry(), chance.choice(("evil", *mutations.TEXTS)), "x" * 5000),
            _MANY,
        ),
        "many-pods": (
            lambda: client.hset(
                pod_key("roster"), mapping={f"evil-{n}": listener.address for n in range(5000)}
            ),
            _FEW,
        ),
        "foreign-keys": (lambda: client.set(f"lookout:{chance.randbytes(9)!r}", chance.randbytes(99)), _MANY),
        "everything-deleted": (client.flushall, _FEW),
    }

    def send(kind: str, attempt: Callable[[], Any]) -> None:
        with tally.trying(kind, redis.RedisError):
            attempt()

    return Door(
        "redis",
        {
            way: ((lambda kind=f"redis {way}", attempt=attempt: send(kind, attempt)), count)  # type: ignore[misc]
            for way, (attempt, count) in ways.items()
        },
        client.close,
    )
