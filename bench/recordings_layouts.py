"""Where a part's pixels are decoded: a part of `make bench-recordings`.

One worker that decodes its parts itself while it prefills them, against one that gets their pixels over gRPC
from a decode pod, a process beside it, on the parts of `recordings_workers`. Every process has one thread;
what counts is CPU time, so pods are modelled as machines of their own: a job takes as long as the busiest of
them. The answers are compared to the bit.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from bench.recordings_workers import Worker, name_of
from bench.results import Results
from lookout.recordings.jobs import Sources
from lookout.recordings.jobs.samples import samples_ref
from lookout.runtime.store import Peers, StoreSettings, TensorClient, TensorService, TensorStore
from lookout.runtime.store.tensors import Array
from lookout.services.recordings.sampling import SamplesMaker
from lookout.v1.lineage_pb2 import STAGE_SAMPLES
from lookout.v1.recordings_pb2 import RecordingPart

_SETTINGS = StoreSettings(materialize_s=600)


def measure(results: Results, path: Path, seconds: int) -> None:
    """All parts with a decode pod, unless that was measured. `recordings_workers` measures the other layout.

    Args:
        results: What was measured.
        path: The recording.
        seconds: Its length.
    """
    name = name_of(seconds, "ahead")
    if name not in results:
        command = [sys.executable, "-m", "bench.recordings_layouts", str(path)]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.add(name, json.loads(child.stdout.splitlines()[-1]))


def summary(results: Results, seconds: int) -> dict[str, Any] | None:
    """Throughput of the split layout over that of one pod, with one and four decode pods; None until both are
    measured."""
    alone = results.found.get(name_of(seconds, "0/1"))
    split = results.found.get(name_of(seconds, "ahead"))
    if not alone or not split:
        return None
    times = {
        str(pods): round(alone["cpu_s"] / max(split["cpu_s"], split["decode_cpu_s"] / pods), 2)
        for pods in (1, 4)
    }
    return {
        "times_by_decode_pods": times,
        "equal": alone["digest"] == split["digest"],
        "parts": split["parts"],
        "from_decode_pods": split["ahead"],
        "cpu_s": {"alone": alone["cpu_s"], "worker": split["cpu_s"], "decode": split["decode_cpu_s"]},
    }


def serve(path: Path) -> None:
    """Be a decode pod until standard input ends; prints its address, and at the end its CPU seconds."""
    _, height, width = sys.argv[2:5]
    maker = SamplesMaker(Sources([path.parent]), (int(height), int(width)), decoders=1)
    store = TensorStore(_SETTINGS)
    store.makes(STAGE_SAMPLES, maker.make)
    server = grpc.server(ThreadPoolExecutor(4))
    TensorService(store).register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    begun = _cpu_s()
    sys.stdin.read()
    server.stop(0).wait()
    maker.close()
    print(_cpu_s() - begun, flush=True)


def main() -> None:
    """All parts, with pixels from a decode pod."""
    path = Path(sys.argv[1]).resolve()
    if sys.argv[2:3] == ["serve"]:
        serve(path)
        return
    with Worker(path) as worker:
        height, width = worker.size
        command = [
            sys.executable,
            "-m",
            "bench.recordings_layouts",
            str(path),
            "serve",
            str(height),
            str(width),
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pod:
            assert pod.stdin is not None
            assert pod.stdout is not None
            peers = Peers(_SETTINGS)
            client = TensorClient(peers, replicas={STAGE_SAMPLES: [pod.stdout.readline().strip()]})

            def ahead(part: RecordingPart) -> Array:
                return client.fetch(samples_ref(part, worker.size), part).array

            row = {"parts": worker.parts, **worker.answered(range(worker.parts), ahead)}
            peers.close()
            pod.stdin.close()
            decode_cpu_s = float(pod.stdout.readline())
    print(json.dumps({**row, "decode_cpu_s": decode_cpu_s}))


def _cpu_s() -> float:
    """CPU seconds of this process, and of its children that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in (own, children))


if __name__ == "__main__":
    main()
