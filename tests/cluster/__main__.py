"""``python -m tests.cluster``: Lookout on a real Kubernetes; ends with one line of JSON."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict

from tests.cluster import workshop
from tests.cluster.cluster import Cluster
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
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(STEPS) if given.all else list(FIRST)
    if unknown := sorted(set(wanted) - set(STEPS)):
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(STEPS)}")
    try:
        return _run(wanted, given)
    except ToolError as error:
        sys.stderr.write(f"tests.cluster: {error}\n")
        return 1


def _run(wanted: list[str], given: argparse.Namespace) -> int:
    tell = Progress()
    images = tuple(dict.fromkeys(image for name in wanted for image in _images(name)))
    additions = [addition for name in wanted if (addition := STEPS[name].addition)]
    build(() if given.no_build else images, additions, tell)
    record, total, wrong = Record(CACHE / "passed.json"), Score(), list[str]()
    left = []
    for name in wanted:
        if given.resume and (score := record.passed(name, _images(name))) is not None:
            tell(f"{name}: passed before with these images and this chart")
            total.add(score)
        else:
            left.append(name)
    if left:
        cluster = Cluster(max(STEPS[name].nodes for name in left))
        try:
            _prepare(cluster, left, images, tell)
            for name in left:
                wrong += _step(name, World(cluster, tell, given.seed), record, total)
        finally:
            if not given.keep:
                cluster.down()
    for line in wrong[:60]:
        tell(line)
    print(json.dumps(asdict(total)), flush=True)
    return 0 if total.clean and not wrong else 1


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
    spaces = cluster.kubectl("get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}").split()
    for space in spaces:
        if space != "default" and not space.startswith("kube-"):
            cluster.kubectl("delete", "namespace", space, "--timeout=180s")


def _step(name: str, world: World, record: Record, total: Score) -> list[str]:
    """Run one step; returns what is wrong. One that cannot go on stops no other."""
    begun = time.monotonic()
    world.tell(f"==== {name}: {STEPS[name].text}")
    try:
        STEPS[name].run(world)
    except (ToolError, subprocess.TimeoutExpired) as error:
        describe(world.cluster)
        world.wrong.append(f"stopped: {error}")
        for line in world.wrong:
            say(line)
        _clear(world.cluster)
    seconds = time.monotonic() - begun
    total.add(world.score)
    passed = world.score.clean and not world.wrong
    if passed:
        record.add(name, _images(name), world.score, seconds)
    counted = json.dumps(asdict(world.score))
    world.tell(f"==== {name} {'passed' if passed else 'FAILED'} in {seconds:.0f} s: {counted}")
    return [f"{name}: {line}" for line in world.wrong]


if __name__ == "__main__":
    sys.exit(main())
