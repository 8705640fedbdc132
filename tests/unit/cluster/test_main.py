"""Programs and images are built side by side; a step that fails stops no other."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster import __main__ as command, results, workshop
from tests.cluster.cluster import Cluster
from tests.cluster.steps import Step
from tests.cluster.tools import Addition, ToolError
from tests.cluster.world import Progress, Record, Score, World


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order; images and programs each wait until the other one has begun."""
    done: list[str] = []
    both = threading.Barrier(2, timeout=30.0)

    def programs(additions: Sequence[Addition]) -> None:
        both.wait()
        for addition in additions:
            addition.build()

    def images(names: Sequence[str]) -> None:
        both.wait()
        done.extend(names)

    monkeypatch.setattr(command, "check_host", lambda additions: done.append("checked"))
    monkeypatch.setattr(command, "install_packages", lambda additions: done.append("packages"))
    monkeypatch.setattr(command, "build_programs", programs)
    monkeypatch.setattr(command, "build_images", images)
    monkeypatch.setattr(workshop, "build_base", lambda: done.append("base"))
    monkeypatch.setattr(workshop, "build_coredns", lambda: done.append("coredns"))
    return done


def test_images_are_built_while_programs_are(done: list[str]) -> None:
    command.build(("decode",), [Addition(lambda: None)], Progress())
    assert done == ["checked", "packages", "base", "decode", "coredns"]


def test_the_other_side_is_built_where_one_fails(done: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ToolError("the proxy of modules is away")

    with pytest.raises(ToolError, match="the proxy of modules is away"):
        command.build(("decode",), [Addition(fail)], Progress())
    assert done == ["checked", "packages", "base", "decode"]
    assert "not built: the proxy of modules is away" in capsys.readouterr().out


class Calls(Cluster):
    """A fake of a cluster that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, ...]] = []

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        self.made.append(arguments)
        return "default kube-system cameras scaled" if "jsonpath" in arguments[-1] else ""

    def helm(self, *arguments: str, check: bool = True) -> str:
        return self.kubectl(*arguments, check=check)


def test_a_step_that_cannot_go_on_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(world: World) -> None:
        world.wrong.append("a verdict is missing")
        raise ToolError("no alert came")

    monkeypatch.setitem(command.STEPS, "memory", Step(fail, "fails", installs=False))
    calls, record, total = Calls(), Record(tmp_path / "passed.json"), Score()
    world, kept = World(calls, Progress(), seed=1), tmp_path / "results.json"
    assert (
        command._step("memory", world, record, total, commit="0a1b2c3d4", kept=kept) == "a verdict is missing"
    )
    printed = capsys.readouterr().out
    assert "memory: stopped: no alert came" in printed
    assert "memory FAILED" in printed
    removed = [call[2] for call in calls.made if call[:2] == ("delete", "namespace")]
    assert removed == ["cameras", "scaled"]
    assert not (tmp_path / "passed.json").exists()
    result = results.read(kept)["memory"]
    assert (result.result, result.commit) == ("a verdict is missing", "0a1b2c3d4"), (
        "the commit the run began with"
    )


def test_outcomes_that_are_missing_fail_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lose(world: World) -> None:
        world.score.expected, world.score.committed = 156, 155

    monkeypatch.setitem(command.STEPS, "memory", Step(lose, "loses one", installs=False))
    world, total, kept = World(Calls(), Progress(), seed=1), Score(), tmp_path / "results.json"
    said = command._step(
        "memory", world, Record(tmp_path / "passed.json"), total, commit="0a1b2c3d4", kept=kept
    )
    assert said.startswith("counted")
    assert '"committed": 155' in said
    assert "155 of 156" in results.table(["base", "memory"], results.read(kept))


def test_steps_that_ran_at_one_commit_are_counted_together() -> None:
    def result(commit: str, committed: int) -> results.Result:
        score = Score(expected=156, committed=committed)
        return results.Result("ok", commit, "2026-11-28", "2 cores", 60, score)

    one, other = result("0a1b2c3d4", 156), result("0a1b2c3d4", 155)
    (row,) = results.table(["base", "nodes"], {"base": one, "nodes": other}).splitlines()[4:]
    assert row == (
        "| **all** | 2 of 2 ok | 311 of 312; 0 committed twice, 0 objects left behind "
        "| 120 | 0a1b2c3d4 | 2026-11-28 |"
    )
    assert "all" not in results.table(["base", "nodes"], {"base": one, "nodes": result("1b2c", 156)})
    assert "all" not in results.table(["base", "nodes"], {"base": one})


def test_the_last_line_names_every_step_also_when_nothing_could_be_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ToolError("the disk is full\nat byte 7")

    monkeypatch.setattr(command, "announce", fail)
    monkeypatch.setattr(command, "choose", lambda *_, **__: Calls())
    monkeypatch.setattr("sys.argv", ["tests.cluster"])
    assert command.main() == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [last[name] for name in command.FIRST] == ["not run: the disk is full"] * 2
    assert last["committed"] == 0


def test_disk_and_time_are_announced_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "CACHE", tmp_path)
    monkeypatch.setattr(command, "NEEDS_GB", 0)  # whatever this machine has
    known = {"chart": results.Result("ok", "0", "2026-01-01", "two cores", 120, Score())}
    command.announce(["chart", "base"], known)
    said = capsys.readouterr().out
    for words in ("took 2 minutes", "(not known: base)", "0 GB below"):
        assert words in said
    monkeypatch.setattr(command, "NEEDS_GB", 10**9)
    with pytest.raises(ToolError, match="GB are free, 1000000000 are needed; set LOOKOUT_CLUSTER_CACHE"):
        command.announce(["chart"], known)


def test_the_command_runs_as_a_program() -> None:
    wrong = subprocess.run(
        [sys.executable, "-m", "tests.cluster", "--only", "nothing"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert wrong.returncode == 2
    assert "no step nothing; there are chart, base" in wrong.stderr
