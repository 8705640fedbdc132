"""A thread that dies unnoticed leaves a process that looks well: threads are started by a supervisor."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: what starts threads of its own, and how their end shows
ALLOWED = {
    "libs/lookout/runtime/worker/supervision.py": "the supervisor",
    "libs/lookout/runtime/worker/transactions.py": "every exception is told to the worker as `Ended.error`",
    "libs/lookout/runtime/worker/takeover.py": "every exception is handed over with its partition",
    "libs/lookout/runtime/worker/worker.py": "stops work that does not end, once; the process ends after it",
    "libs/lookout/runtime/net/call_limits.py": "cancels slow calls; imported where there is no worker",
    "libs/lookout/runtime/kafka_clients.py": "logs in again; a client that is refused says so",
    "libs/lookout/runtime/observe/metrics.py": "serves probes: an orchestrator notices that they stop",
    "libs/lookout/models/batching.py": "gives its exceptions to those who wait; services pass a supervisor",
    "libs/lookout/recordings/overlap.py": "ends with its recording; exceptions are handed over",
    "libs/lookout/streams/session/session.py": "one description; exceptions are handed over",
    "libs/lookout/video/files/parallel.py": "one job at a time; exceptions are handed over",
    "libs/lookout/video/sandbox/plain_passwords.py": "in the confined process: the connection ends with it",
    "libs/lookout/video/sandbox/pool.py": "looks at idle decoders; without it they have a limit for life",
    "libs/lookout/video/sandbox/puller.py": "in the confined process, which ends with it",
    "libs/lookout/video/sandbox/serving.py": "serves one recording; its reader fails without it",
    "libs/lookout/video/sandbox/worker.py": "in the confined process, which ends with it",
    "services/camera_agent/stream.py": "catches every exception, reports it and goes on",
    "services/controller/__main__.py": "ends with the leader; its loop notices a fault",
    "services/controller/following.py": "ends with the leader",
    "services/recall/servicer.py": "one question; exceptions are handed over",
}


def test_threads_are_supervised() -> None:
    found = set()
    for folder in ("libs/lookout", "services"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if "lookout/services/" in name or "/local/" in name or "/cli/" in name:
                continue
            if "Thread(" in (text := path.read_text()) and _starts(ast.parse(text)):
                found.add(name)
    assert found == set(ALLOWED)


def _starts(tree: ast.AST) -> bool:
    """Whether a module makes threads, or classes of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread"):
            return True
        if isinstance(node, ast.ClassDef) and any("Thread" in ast.unparse(base) for base in node.bases):
            return True
    return False
