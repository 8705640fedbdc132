"""``python -m tests.cluster``: Lookout on a real Kubernetes; ends with one line of JSON."""

import argparse
import sys

from tests.cluster import scenario
from tests.cluster.tools import ToolError


def main() -> int:
    """Run the scenario and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--all", action="store_true", help="go on with upgrades, scaling, drains and more")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of pods to kill")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running at the end")
    parser.add_argument("--no-build", action="store_true", help="use the images that are there")
    given = parser.parse_args()
    try:
        return scenario.run(everything=given.all, seed=given.seed, keep=given.keep, build=not given.no_build)
    except ToolError as error:
        sys.stderr.write(f"tests.cluster: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
