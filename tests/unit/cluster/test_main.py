"""Programs and images are built side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.cluster import __main__ as command, workshop
from tests.cluster.tools import Addition, ToolError
from tests.cluster.world import Progress


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
    monkeypatch.setattr(command, "install_packages", lambda: done.append("packages"))
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
