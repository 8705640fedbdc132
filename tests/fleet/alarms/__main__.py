"""`make test-alerts`: causes the fault behind each Prometheus rule of the chart on one real fleet.

The metrics of all services are recorded meanwhile, and promtool evaluates the chart's rules on them. A rule
that fires in another case than that of its fault is false, unless it has to follow from that fault. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path

from tests.eventually import eventually
from tests.fleet.alarms.faults import CAUSES
from tests.fleet.alarms.replay import Case, fired, metric_names, rendered_rules, rule_name
from tests.fleet.alarms.world import World


def recorded(names: set[str], chosen: set[str], folder: Path) -> list[Case]:
    """The cases of the chosen faults, on one fleet."""
    cases: list[Case] = []
    with ExitStack() as stack:
        world = World(stack, folder, names)
        for cause in CAUSES:
            if chosen and cause.__name__ not in chosen:
                continue
            try:
                eventually(world.settled, every=1.0)
                for case in cause(world):
                    print(f"recorded: {case.fault}", file=sys.stderr, flush=True)
                    cases.append(case)
            except Exception:  # the other rules are tried all the same; this one has not fired
                print(f"{cause.__name__} could not be caused", file=sys.stderr)
                traceback.print_exc()
    return cases


def main() -> int:
    """Run it; 1 where a rule does not fire, or fires without its fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults by name, separated by commas")
    parser.add_argument("--folder", type=Path, help="keeps logs and recorded scrapes; a temporary one")
    options = parser.parse_args()
    chosen = set(filter(None, options.only.split(",")))
    rules = rendered_rules()
    with ExitStack() as stack:
        name = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
        cases = recorded(metric_names(rules), chosen, Path(name))
        by_rule: dict[str, str] = {}
        false = 0
        for case in cases:
            found = fired(rules, case, Path(name))
            wrong = sorted(found - case.rules - case.also)
            missing = sorted(case.rules - found)
            by_rule |= dict.fromkeys(case.rules & found, case.fault)
            false += len(wrong)
            print(f"{case.fault}: {', '.join(sorted(found)) or 'no alert'}")
            for text, which in (("FALSE", wrong), ("MISSING", missing)):
                if which:
                    print(f"  {text}: {', '.join(which)}")
    silent = sorted({rule_name(rule) for rule in rules} - set(by_rule))
    if silent and not chosen:
        print(f"never fired: {', '.join(silent)}")
    print(json.dumps({"rules": len(rules), "fired": len(by_rule), "false": false}))
    return int(bool(false) or (bool(silent) and not chosen))


if __name__ == "__main__":
    sys.exit(main())
