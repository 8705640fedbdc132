"""Programs and images are built side by side; a step that fails stops no other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster import __main__ as command, workshop
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
    world = World(calls, Progress(), seed=1)
    wrong = command._step("memory", world, record, total)
    assert wrong == ["memory: a verdict is missing", "memory: stopped: no alert came"]
    assert "memory FAILED" in capsys.readouterr().out
    removed = [call[2] for call in calls.made if call[:2] == ("delete", "namespace")]
    assert removed == ["cameras", "scaled"]
    assert not (tmp_path / "passed.json").exists()
