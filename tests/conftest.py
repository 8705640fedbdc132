"""What all tests share."""

from __future__ import annotations

import gc
import locale
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from lookout.models.families import inference

# Before torch is imported. Two threads of OpenMP that share a busy core wait for each other by spinning:
# tests of tiny models took twenty times as long beside another program.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine draws examples slowly; a test's own `settings` keep this. `make test` draws the same examples
# each time, so that a change fails because of what it changed; `make test-all` draws new ones.
_BUSY: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("new examples", **_BUSY)
hypothesis.settings.register_profile("same examples", derandomize=True, **_BUSY)
hypothesis.settings.load_profile("same examples")

#: groups that start servers and services. They wait for most of their time (for sessions that end, brokers
#: that come back): three of them take about one of two cores
HEAVY, HEAVY_AT_A_TIME = ("tests/vllm/", "tests/fleet/"), 3
#: the longest of them, begun first: at the end of a run nothing is left to do beside a long one
LONGEST = (
    "tests/fleet/test_worker_faults.py",
    "tests/fleet/test_outages.py",
    "tests/vllm/",
    "tests/fleet/test_gateway_keep.py",
    "tests/fleet/test_gateway_live.py",
    "tests/fleet/test_cli_commands.py",
    "tests/fleet/test_recordings.py",
    "tests/fleet/test_recall.py",
    "tests/fleet/test_lost_broker.py",
    "tests/fleet/test_console.py",
    "tests/fleet/test_console_video.py",
    "tests/fleet/test_camera_command.py",
    "tests/fleet/test_local_passwords.py",
    "tests/fleet/test_worker_poison.py",
    "tests/fleet/test_own_service.py",
    "tests/fleet/test_secured_kafka.py",
    "tests/fleet/test_worker.py",
    "tests/fleet/test_worker_rolling.py",
    "tests/fleet/test_camera_agent.py",
    "tests/fleet/test_whole_fleet.py",
    "tests/fleet/test_local_fleet.py",
    "tests/fleet/test_killed_broker.py",
    "tests/fleet/test_endless_work.py",
    "tests/fleet/test_decode_prune_services.py",
    "tests/fleet/test_local_servers.py",
    "tests/fleet/test_installations.py",
    "tests/fleet/test_demo.py",
)
#: folders whose files run in one process
TOGETHER = ("tests/vllm/", "tests/unit/house/")
#: variables that a test or an engine may set and must take back; libraries set others of theirs for good
_VARIABLES = (
    "LOOKOUT_",
    "AWS_",
    "HOME",
    "LANG",
    "LC_",
    "LD_PRELOAD",
    "OMP_",
    "PATH",
    "PYTHON",
    "TMPDIR",
    "TZ",
    "XDG_",
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BEFORE = pytest.StashKey[tuple[str, dict[str, object]]]()
DEFAULT_FOOTAGE = Path(__file__).resolve().parents[2] / "shared" / "video"


def pytest_configure() -> None:
    """`kill` and a closed terminal end a run as Ctrl-C does: fixtures end what they started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A `long` test that names no timeout has half an hour: on a busy machine brokers start for minutes."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))


def pytest_collectstart() -> None:
    """Imports leave little garbage, and looking for it takes a fifth of the time of collecting."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector no longer walks it, and looks first at larger batches.

    A syntax tree or a parsed document has more than Python's 700 objects, none of them garbage.
    """
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()
    if "transformers.modeling_utils" in sys.modules:  # five seconds of a CPU, in every worker
        raise pytest.UsageError(
            "a file of tests loads a stock model where it is read: load it in a test or fixture"
        )


def group_of(nodeid: str) -> str:
    """The file of a test, or the folder whose files stay together."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


class Interleaved(LoadScopeScheduling):
    """Fleets beside unit tests: while a fleet waits for a broker or a session, unit tests compute.

    Tests of a file stay together, because they share servers. So do all of vLLM, whose engines are one at a
    time and serve several files, and the rules of the house, which share syntax trees. The groups of xdist
    (`--dist loadgroup`) are no choice: they are lost with pytest's ids from 9.2 on.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker ended: its unfinished groups go to others, without the test that it ended in.

        xdist (3.8) hands finished groups out again as well. A worker that is given one has nothing to run and
        waits for ever, and so does the run. It also runs the test that ended a worker again, in another one.
        """
        unfinished = {
            group: tests for group, tests in self.assigned_work.pop(node).items() if not all(tests.values())
        }
        if not unfinished:
            return None
        group, tests = next(iter(unfinished.items()))
        crashed = next(test for test, is_done in tests.items() if not is_done)
        tests[crashed] = True
        if all(tests.values()):
            del unfinished[group]
        self.workqueue.update(unfinished)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        def is_heavy(group: str) -> bool:
            return group.startswith(HEAVY)

        def rank(group: str) -> int:
            return LONGEST.index(group) if group in LONGEST else len(LONGEST)

        busy = sum(
            any(is_heavy(group) and not all(tests.values()) for group, tests in work.items())
            for other, work in self.assigned_work.items()
            if other is not node
        )
        first = min(
            self.workqueue,
            key=lambda group: (is_heavy(group) == (busy >= HEAVY_AT_A_TIME), rank(group)),
        )
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Interleaved | None:
    """The order of groups in a run of several processes."""
    return Interleaved(config, log) if config.getvalue("dist") == "loadscope" else None


def process_state() -> dict[str, object]:
    """What the tests of a file share with those that run behind them in this process."""
    mask = os.umask(0)
    os.umask(mask)
    state = {f"variable {name}": value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    state |= {f"handler of {number.name}": signal.getsignal(number) for number in _SIGNALS}
    state |= {
        "working directory": os.getcwd(),
        "umask": mask,
        "locale": locale.setlocale(locale.LC_ALL),
        "scheduling": os.sched_getscheduler(0),  # a real-time policy starves brokers and engines
        "cores": os.sched_getaffinity(0),
        "timeout of sockets": socket.getdefaulttimeout(),
    }
    if torch := sys.modules.get("torch"):
        state |= {
            "torch.set_num_threads": torch.set_num_threads,
            "threads of torch": torch.get_num_threads(),
            "default type of torch": torch.get_default_dtype(),
            "gradients of torch": torch.is_grad_enabled(),
        }
    return state


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Before the first fixture of a file."""
    group = group_of(item.nodeid)
    if item.session.stash.get(_BEFORE, ("", {}))[0] != group:
        item.session.stash[_BEFORE] = group, process_state()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Behind the last fixture of a file: what it leaves would be a fault of a test that comes later."""
    yield
    group, before = item.session.stash[_BEFORE]
    if nextitem is None or group_of(nextitem.nodeid) != group:
        after = process_state()
        left = {
            name: (before.get(name), after.get(name))
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name) and (name in before or "torch" not in name)
        }
        assert not left, f"{group} leaves to the tests behind it: {left}"


@pytest.fixture(scope="session", autouse=True)
def whole_models() -> Iterator[None]:
    """Commands that run in this process leave nothing out of it: tests behind them need stock processors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "_UNUSED", ())
        yield


def log_plainly() -> None:
    """Tracebacks as Python prints them: structlog's own show the value of every variable, and the state of a
    worker takes minutes of a busy core to print."""
    structlog.reset_defaults()
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure([*others, renderer])


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command or service that a test runs in its own process sets logging up for all tests behind it."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    log_plainly()
    yield
    root.handlers = before[0]
    root.setLevel(before[1])


def find_footage() -> Path | None:
    """The folder of real clips: LOOKOUT_FOOTAGE, else ../shared/video beside the project."""
    given = os.environ.get("LOOKOUT_FOOTAGE")
    folder = Path(given) if given else DEFAULT_FOOTAGE
    if given and not folder.is_dir():
        raise pytest.UsageError(f"LOOKOUT_FOOTAGE={given} is no directory")
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def footage() -> Path:
    """A folder of real clips. Tests that need it are skipped, with a message, where there is none."""
    folder = find_footage()
    if folder is None:
        pytest.skip("no real footage: set LOOKOUT_FOOTAGE to a folder of clips to run these tests")
    return folder
