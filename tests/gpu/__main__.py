"""The campaign that waits for a GPU: steps, most valuable first, each with a time limit of its own.

    python -m tests.gpu --list                         what there is, what this machine lacks, what has run
    python -m tests.gpu                                every step that has not run, into out/gpu.jsonl
    python -m tests.gpu --device cpu --shape tiny      the same steps at a size that proves them on a CPU

It runs from a copy of the project without installing it and reaches for no network: weights are random and
made on the device. Each step is a process and a line of JSON with its figures, device, commit and date. It is
ended at its limit (--list shows it) and runs with OMP_NUM_THREADS = 4 unless that is set: a machine with a
GPU has many cores, and threads that wait for each other slow down what the CPU does for the GPU. A new check
is a new short step with a limit of its own, so that a device that is lent for minutes is enough for it. A
campaign that was cut off goes on with the first step that has no line of this device, shape and commit.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.gpu import needs

ROOT: Final = Path(__file__).parents[2]
THREADS: Final = "4"


@dataclass(frozen=True, slots=True)
class Step:
    """A step: the module of this package that runs it, what it finds out, and after how many seconds it is
    ended."""

    name: str
    what: str
    limit_s: int = 240


STEPS: Final = (
    Step("attention", "every shape of attention on the device, against float64 on the host"),
    Step("oracles", "every CPU oracle of engines, vision, recordings and memory on the device"),
    Step("live", "windows of 80 frames: latency by stage, live streams, VSS's workload"),
    Step("recording", "group prefill of an hour"),
    Step("past", "memory: first token at an hour, pinned moves, prefetch"),
    Step("kv8", "KV of streams in FP8: error"),
    Step("graphs", "passes of a tower in padded shapes, as CUDA graphs: the same tokens, pace", 60),
    Step("nvdec", "NVDEC: equality with the software decoder, vectors, pace", 90),
    Step("training", "training of the tiny model"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """List or run the steps."""
    options = _options(arguments)
    wanted = [step for step in STEPS if step.name in options.only]
    if options.inside:
        print(json.dumps(perform(wanted[0].name, options.shape, options.device)))
        return 0
    print("needed beside the project:\n" + needs.report(), flush=True)
    lacking = needs.missing("")
    facts = {"shape": options.shape, "commit": options.commit or commit()}
    if not lacking:
        facts["device"] = device_name(options.device)
    done = finished(options.out, facts)
    for step in wanted:
        state = (
            "done"
            if step.name in done
            else "lacks " + ", ".join(absent)
            if (absent := needs.missing(step.name))
            else "to run"
        )
        print(f"  {step.name:10} {step.what}, at most {step.limit_s} s [{state}]", flush=True)
    if options.list:
        return 0
    if lacking:
        print(f"nothing runs without {', '.join(lacking)}", file=sys.stderr)
        return 2
    failures = 0
    for step in wanted:
        if step.name in done and not options.fresh:
            continue
        line = attempt(step, options) | facts
        failures += "figures" not in line or bool(line["figures"].get("wrong"))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
    return 1 if failures else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [step.name for step in STEPS]
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STEP")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=("7b", "tiny"), default="7b")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu.jsonl", help="lines and state")
    parser.add_argument("--commit", help="where the copy has no git: the commit that it is of")
    parser.add_argument("--fresh", action="store_true", help="run steps again that have a line")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def perform(name: str, shape: str, device: str) -> dict[str, Any]:
    """Run one step in this process; its figures."""
    from tests.gpu.scale import scale_of

    module = importlib.import_module(f"tests.gpu.{name}")
    figures: dict[str, Any] = module.run(scale_of(shape, device))
    return figures


def attempt(step: Step, options: argparse.Namespace) -> dict[str, Any]:
    """Run one step in a process of its own; its line, with the figures or what went wrong."""
    line: dict[str, Any] = {"step": step.name, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    if absent := needs.missing(step.name):
        return line | {"error": f"this machine lacks {', '.join(absent)}"}
    command = ["--inside", "--only", step.name, "--shape", options.shape, "--device", options.device]
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu", *command],
            cwd=ROOT, capture_output=True, text=True, timeout=step.limit_s, check=False,
            env={"OMP_NUM_THREADS": THREADS} | os.environ,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return line | {"error": f"cut off after {step.limit_s} s"}
    line["seconds"] = round(time.monotonic() - start, 1)
    line["versions"] = {name: needs.installed(name) for name in ("torch", "transformers")}
    if done.returncode:
        return line | {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:500]}
    return line | {"figures": json.loads(done.stdout.strip().splitlines()[-1])}


def finished(path: Path, facts: dict[str, str]) -> set[str]:
    """Names of the steps with figures of the same device, shape and commit; a line that was cut off in the
    middle is none."""
    names = set()
    for text in path.read_text().splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "figures" in line and all(line.get(key) == value for key, value in facts.items()):
            names.add(line["step"])
    return names


def device_name(device: str) -> str:
    """What runs the steps."""
    import torch

    from bench.record import device as host

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else host()


def commit() -> str:
    """The commit of this copy; "unknown" where it has no git."""
    from bench import record

    try:
        return record.commit()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
