"""``python -m tests.cluster``: Lookout on a real Kubernetes; ends with one line of JSON.

The line names every step with ``ok`` or what was wrong first, then what all of them counted.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench import record as bench
from tests.cluster import results, workshop
from tests.cluster.cluster import Cluster
from tests.cluster.existing import ExistingCluster, choose
from tests.cluster.steps import FIRST, STEPS
from tests.cluster.tools import CACHE, Addition, ToolError, build_programs, check_host, install_packages, say
from tests.cluster.world import (
    IMAGES,
    NAMESPACE,
    RELEASE,
    Progress,
    Record,
    Score,
    World,
    build_images,
    describe,
    image_name,
    tagged_again,
)

#: beginning of what is said of a step that this cluster cannot run
LEFT_OUT: Final = "left out"
#: of the first run, on two cores: programs, base image and images
FIRST_MINUTES: Final = 45
#: images and nodes, and while it builds Go's trees and the cache of wheels
NEEDS_GB: Final = 35


def main() -> int:
    """Run the steps and return the exit code."""
    names = "; ".join(f"{name}: {step.text}" for name, step in STEPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description=__doc__, epilog=f"Steps: {names}."
    )
    parser.add_argument("--all", action="store_true", help=f"every step, not only {' and '.join(FIRST)}")
    parser.add_argument("--only", metavar="STEP,...", help="these steps")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what passed with these images and chart"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the choice of pods to kill")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running at the end")
    parser.add_argument("--no-build", action="store_true", help="use the images that are there")
    parser.add_argument("--context", metavar="NAME", help="of kubectl: a cluster that is there")
    parser.add_argument(
        "--image-prefix",
        metavar="PREFIX",
        help="with --context: the cluster pulls the images, which were pushed before: registry.example/team/",
    )
    parser.add_argument(
        "--own-nodes", action="store_true", help="nodes of our own, also where Docker and kind or k3d are"
    )
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(STEPS) if given.all else list(FIRST)
    if unknown := sorted(set(wanted) - set(STEPS)):
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(STEPS)}")
    if given.image_prefix and (given.resume or not given.context):
        parser.error("--image-prefix goes with --context, and without --resume: its images may be new ones")
    if given.image_prefix:
        os.environ["LOOKOUT_IMAGE_PREFIX"] = given.image_prefix
    said = dict.fromkeys(wanted, "not run")
    total = Score()
    try:
        _run(said, total, given)
    except ToolError as error:
        sys.stderr.write(f"tests.cluster: {error}\n")
        said.update({name: f"not run: {_first_line(error)}" for name in said if said[name] == "not run"})
    print(json.dumps({**said, **asdict(total)}), flush=True)
    return 0 if total.clean and all(map(_harmless, said.values())) else 1


def _harmless(result: str) -> bool:
    """Whether a step passed, or cannot run on this cluster."""
    return result.startswith((results.OK, LEFT_OUT))


def _first_line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "")[:200]


def _run(said: dict[str, str], total: Score, given: argparse.Namespace) -> None:
    """Run the steps that are named in `said` and write there how each ended."""
    tell = Progress()
    commit = bench.commit()  # before results of steps change the tree
    cluster = choose(given.context, given.image_prefix or "", own_nodes=given.own_nodes)
    wanted = possible(said, cluster, tell)
    images = tuple(dict.fromkeys(image for name in wanted for image in _images(name)))
    additions = [addition for name in wanted if (addition := STEPS[name].addition)]
    if isinstance(cluster, ExistingCluster):
        cluster.check_programs()
        if images and not given.no_build and not cluster.pushed:
            build_images(images, "docker")
    else:
        announce(wanted)
        build(() if given.no_build else images, additions, tell)
    record = Record(CACHE / "passed.json", cluster.image_layers)
    left = []
    for name in wanted:
        if given.resume and (score := record.passed(name, _images(name))) is not None:
            tell(f"{name}: passed before with these images and this chart")
            said[name] = f"{results.OK}, before"
            total.add(score)
        else:
            left.append(name)
    if left:
        cluster.nodes = max(STEPS[name].nodes for name in left)
        try:
            _prepare(cluster, left, images, tell)
            for name in left:
                said[name] = _step(name, World(cluster, tell, given.seed), record, total, commit=commit)
        finally:
            if not given.keep:
                cluster.down()
                say(f"{CACHE} keeps {_gigabytes(CACHE):.1f} GB for the next run; delete it if there is none")


def possible(said: dict[str, str], cluster: Cluster, tell: Progress) -> list[str]:
    """Return the steps that can run on a cluster, and write next to the others why they are left out.

    Raises:
        ToolError: None can.
    """
    reasons = cluster.left_out()
    for name in said:
        if name in reasons:
            tell(f"{name} is {LEFT_OUT}: {reasons[name]}")
            said[name] = f"{LEFT_OUT}: {reasons[name]}"
    if not (able := [name for name in said if name not in reasons]):
        raise ToolError("no step is left that can run on this cluster")
    return able


def announce(steps: Sequence[str], known: Mapping[str, results.Result] | None = None) -> None:
    """Say how much disk and time a run takes, before anything is built.

    Raises:
        ToolError: The disk has less.
    """
    known = results.read() if known is None else known
    seconds = sum(known[name].seconds for name in steps if name in known)
    there = CACHE / "passed.json"
    first = "" if there.exists() else f", after {FIRST_MINUTES} minutes of building; later runs find it built"
    new = ", ".join(name for name in steps if name not in known)
    say(
        f"{len(steps)} steps, which took {seconds / 60:.0f} minutes on two cores the last time"
        f"{f' (not known: {new})' if new else ''}{first}; {NEEDS_GB} GB below {CACHE}"
    )
    CACHE.mkdir(parents=True, exist_ok=True)
    if not there.exists() and (free := shutil.disk_usage(CACHE).free / 1e9) < NEEDS_GB:
        raise ToolError(f"{CACHE}: {free:.0f} GB are free, {NEEDS_GB} are needed; set LOOKOUT_CLUSTER_CACHE")


def _gigabytes(folder: Path) -> float:
    """What the files of a folder take, as `du` says."""
    said = subprocess.run(["du", "-sxk", str(folder)], check=False, capture_output=True, text=True).stdout
    return int(said.split()[0]) / 1e6 if said else 0.0


def build(images: Sequence[str], additions: Sequence[Addition], tell: Progress) -> None:
    """Build programs and images side by side, after what both need.

    Raises:
        ToolError: One side failed, which is said at once; the other goes on, and the next run finds its work.
    """
    check_host(additions=additions)
    install_packages(additions)

    def programs() -> None:
        build_programs(additions)
        tell("programs are there")

    def from_packages() -> None:
        workshop.build_base()
        if images:
            build_images(images)
        tell("images are there")

    with ThreadPoolExecutor() as pool:
        sides = [pool.submit(programs), pool.submit(from_packages)]
        for side in as_completed(sides):
            if error := side.exception():
                tell(f"not built: {error}")
    for side in sides:
        side.result()
    workshop.build_coredns()


def _images(step: str) -> tuple[str, ...]:
    """The images that a step needs."""
    return (*IMAGES, *STEPS[step].images) if STEPS[step].installs else ()


def _prepare(cluster: Cluster, steps: list[str], images: Sequence[str], tell: Progress) -> None:
    if cluster.join():
        tell("a cluster is running and is used")
        if isinstance(cluster, ExistingCluster):
            cluster.check_namespaces((NAMESPACE, "second"))
        _clear(cluster)
    else:
        cluster.up()
    tell("importing images")
    names = [image_name(image) for image in images]
    if "changes" in steps:
        names += [tagged_again(image) for image in images]
    cluster.load_changed(names)
    tell("images are in the nodes")


def _clear(cluster: Cluster) -> None:
    """Remove what a step that failed left: each has namespaces of its own."""
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", check=False)
    for space in cluster.namespaces():
        cluster.kubectl("delete", "namespace", space, "--timeout=180s")


def _step(
    name: str, world: World, record: Record, total: Score, *, commit: str, kept: Path = results.RESULTS
) -> str:
    """Run one step, keep its result and return it. A step that cannot go on stops no other."""
    begun = time.monotonic()
    world.tell(f"==== {name}: {STEPS[name].text}")
    try:
        STEPS[name].run(world)
    except (ToolError, subprocess.TimeoutExpired) as error:
        describe(world.cluster)
        world.wrong.append(f"stopped: {error}")
        _clear(world.cluster)
    seconds = time.monotonic() - begun
    total.add(world.score)
    for line in world.wrong:
        world.tell(f"{name}: {line}")
    if not (world.wrong or world.score.clean):
        world.wrong.append(f"counted {json.dumps(asdict(world.score))}")
    said = _first_line(world.wrong[0]) if world.wrong else results.OK
    if not world.wrong:
        record.add(name, _images(name), world.score, seconds)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    result = results.Result(said, commit, today, bench.device(), round(seconds), world.score)
    results.keep(name, result, kept)
    counted = json.dumps(asdict(world.score))
    world.tell(f"==== {name} {'FAILED' if world.wrong else 'passed'} in {seconds:.0f} s: {counted}")
    return said


if __name__ == "__main__":
    sys.exit(main())
