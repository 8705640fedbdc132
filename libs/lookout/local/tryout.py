"""Runs a single Kafka or Redis process, without security or replicas, for trying Lookout on Kubernetes.

``python -m lookout.local.tryout kafka|redis`` runs until SIGTERM. The chart starts it if no other Kafka or
Redis is given. Do not keep valuable data in it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from lookout.local.kafka import KafkaListener, KafkaServer
from lookout.local.processes import LocalError
from lookout.local.redis import find_redis_server
from lookout.text import visible

_OWN_PORT = 19092
_LOOK_EVERY_S = 0.5


class _StoppedError(Exception):
    """SIGTERM arrived."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server given on the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.server == "redis":
            _redis(options.data, options.port, options.max_memory_mb)
        return _kafka(options.data, options.listener, options.heap_mb)
    except LocalError as error:
        sys.stderr.write(visible(f"lookout.local.tryout: {error}\n"))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lookout.local.tryout", description=__doc__)
    servers = parser.add_subparsers(dest="server", required=True)
    kafka = servers.add_parser("kafka")
    kafka.add_argument("--data", type=Path, required=True)
    kafka.add_argument("--heap-mb", type=int, default=512)
    kafka.add_argument(
        "--listener", type=_listener, action="append", required=True, help="NAME=PORT=ADVERTISED_HOST:PORT"
    )
    redis = servers.add_parser("redis")
    redis.add_argument("--data", type=Path, required=True)
    redis.add_argument("--port", type=int, default=6379)
    redis.add_argument("--max-memory-mb", type=int, default=256)
    return parser


def _listener(text: str) -> KafkaListener:
    try:
        name, port, advertised = text.split("=", 2)
        return KafkaListener(name, int(port), advertised)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PORT=ADVERTISED_HOST:PORT") from None


def _kafka(folder: Path, listeners: Sequence[KafkaListener], heap_mb: int) -> int:
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    server = KafkaServer(folder, port=_OWN_PORT, heap_mb=heap_mb, outside=listeners)
    try:
        server.start()
        sys.stderr.write("Kafka is ready\n")
        while server.alive:
            time.sleep(_LOOK_EVERY_S)
    except _StoppedError:
        server.stop()
        return 0
    sys.stderr.write(visible(f"Kafka ended:\n{server.log.read_text(errors='replace')[-4000:]}\n"))
    return 1


def _redis(folder: Path, port: int, max_memory_mb: int) -> None:
    """Replace this process with a Redis server without persistence."""
    options = {
        "port": str(port),
        "bind": "* -::*",
        "protected-mode": "no",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "maxmemory": f"{max_memory_mb}mb",
        "maxmemory-policy": "volatile-lru",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    program = str(find_redis_server())
    os.execv(program, [program, *words])


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _StoppedError


if __name__ == "__main__":
    sys.exit(main())
