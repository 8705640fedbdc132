"""Runs a bench and stores its result in a file: `python -m bench.record NAME [ARGUMENTS]`.

The last line that a bench prints is one JSON object. It is stored in `bench/results/NAME.json` with command,
device, commit, date and the load of the machine, so that a page can say how old a figure is. Pages are made
from these files (`python -m bench.pages`); no figure in them is typed by hand. If a bench's arguments make it
a different measurement, store it under another name: `--as windows-flops`. A name with a dot is that of a
module outside bench: `python -m bench.record watchbench.sight --as sight-20`.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lookout.models import TINY

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
FOLDERS = ("libs", "services")


@dataclass(frozen=True, slots=True)
class Record:
    """One run of a bench.

    Attributes:
        command: What was run.
        device: Processor and cores, and the GPU where there is one.
        commit: The commit, with `+` where files differed from it.
        date: The day it ended, UTC.
        busy: Load of the machine when it began, in processes a core; a figure taken beside others says so.
        figures: The bench's last line.
        trees: Git's trees of libs and services in that commit: a rebase gives the commit another name, not
            them.
        landed: The commit that brought the result into the history, where a rebase lost the one that ran.
        weights: Hash of the bundled model's weights; empty in results from before 28 November 2026.
    """

    command: str
    device: str
    commit: str
    date: str
    busy: float
    figures: dict[str, Any]
    trees: str = ""
    landed: str = ""
    weights: str = ""

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {name: value for name, value in asdict(self).items() if value != ""}
        path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a file.

        Raises:
            ValueError: An entry is missing or unknown.
        """
        try:
            return cls(**json.loads(path.read_text()))
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from None


def device() -> str:
    """Processor and cores of this machine."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def git(*arguments: str) -> str:
    """What a command of git prints about this repository.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def commit() -> str:
    """The commit that runs; `+`: files differ from it."""
    return git("rev-parse", "--short=9", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def trees(revision: str = "HEAD") -> str:
    """The trees of libs and services in a commit, the beginnings of git's names."""
    names = git("rev-parse", *(f"{revision}:{folder}" for folder in FOLDERS)).split()
    return " ".join(name[:12] for name in names)


def bundled() -> str:
    """Hash of the bundled model's weights, 12 hexadecimal digits."""
    return hashlib.sha256((TINY / "model.safetensors").read_bytes()).hexdigest()[:12]


def last_line(output: str) -> dict[str, Any]:
    """The JSON object that a bench ends with.

    Raises:
        ValueError: Its last line is none.
    """
    lines = output.strip().splitlines()
    try:
        figures = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise ValueError(f"the bench ended with {lines[-1:]!r}, not with a line of JSON") from None
    if not isinstance(figures, dict):
        raise ValueError(f"the bench ended with {lines[-1]!r}, not with a JSON object")
    return figures


def module(name: str) -> str:
    """The module that is run: one of bench, or by its whole name."""
    return name if "." in name else f"bench.{name}"


def told(arguments: Sequence[str]) -> list[str]:
    """The arguments without `--keep FOLDER`: where work is kept is of one machine, and changes no figure."""
    rest = list(arguments)
    if "--keep" in rest:
        place = rest.index("--keep")
        del rest[place : place + 2]
    return rest


def main() -> int:
    """Run the bench and keep its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="a module of bench, or one elsewhere by its whole name")
    parser.add_argument("--as", dest="file", help="name of the file; default: the module's own")
    given, arguments = parser.parse_known_args()
    state, ran, busy = commit(), trees(), round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    command = [sys.executable, "-m", module(given.name), *arguments]
    output = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            output += line
    if bench.returncode:
        return bench.returncode
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    shown = " ".join(["python -m", module(given.name), *told(arguments)])
    record = Record(shown, device(), state, day, busy, last_line(output), ran, weights=bundled())
    record.write(RESULTS / f"{given.file or given.name.rpartition('.')[2]}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
