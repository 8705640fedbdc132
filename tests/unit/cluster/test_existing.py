"""Clusters that are there: the commands that are chosen, against fakes of docker, kind, k3d and kubectl.

The fakes are shell scripts that record how they were called; no daemon and no cluster runs here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cluster import __main__ as command, existing
from tests.cluster.cluster import Cluster
from tests.cluster.existing import ExistingCluster, MadeCluster
from tests.cluster.steps import STEPS
from tests.cluster.tools import ToolError
from tests.cluster.world import Progress, image_name

_NODES = {
    "items": [
        {"status": {"addresses": [{"type": "Hostname", "address": "one"}]}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]}},
    ]
}


class Fakes:
    """Fakes of programs on PATH that record their arguments, one JSON line a call.

    Args:
        folder: Where they lie; nothing else is on PATH.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record = folder / "calls"
        folder.mkdir()

    def add(self, name: str, body: str = "", code: int = 0) -> None:
        """Put a fake on PATH that prints a text and ends with a code."""
        path = self._folder / name
        (self._folder / f"{name}.out").write_text(body)
        lines = "#!/bin/sh", f'echo "{name} $*" >> {self._record}', f"/bin/cat {path}.out", f"exit {code}", ""
        path.write_text("\n".join(lines))
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        """The calls so far, as command lines."""
        return self._record.read_text().splitlines() if self._record.exists() else []


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fakes:
    made = Fakes(tmp_path / "fakes")
    monkeypatch.setenv("PATH", str(tmp_path / "fakes"))
    monkeypatch.setattr(existing, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(existing, "BIN", tmp_path / "bin")
    return made


def test_own_nodes_where_neither_kind_nor_k3d_is(fakes: Fakes) -> None:
    fakes.add("docker")
    assert type(existing.choose(None, "", own_nodes=False)) is Cluster
    assert fakes.calls == []


def test_own_nodes_where_dockers_daemon_does_not_answer(fakes: Fakes) -> None:
    fakes.add("docker", code=1)
    fakes.add("kind")
    assert type(existing.choose(None, "", own_nodes=False)) is Cluster
    assert fakes.calls == ["docker info"]


@pytest.mark.parametrize("program", ["kind", "k3d"])
def test_docker_with_kind_or_k3d_is_used(fakes: Fakes, program: str) -> None:
    fakes.add("docker")
    fakes.add(program)
    chosen = existing.choose(None, "", own_nodes=False)
    assert isinstance(chosen, MadeCluster)
    assert chosen.context == f"{program}-lookout-test"
    assert type(existing.choose(None, "", own_nodes=True)) is Cluster


def test_a_context_goes_first(fakes: Fakes) -> None:
    fakes.add("docker")
    fakes.add("kind")
    chosen = existing.choose("site", "registry.example/team/", own_nodes=False)
    assert type(chosen) is ExistingCluster
    assert (chosen.context, chosen.pushed) == ("site", "registry.example/team/")
    assert fakes.calls == []


def test_kind_makes_and_removes_a_cluster(fakes: Fakes, tmp_path: Path) -> None:
    fakes.add("kind")
    cluster = MadeCluster("kind")
    cluster.up()
    cluster.load_changed([image_name("decode"), image_name("tryout")])
    cluster.down()
    file = tmp_path / "cache" / "kind.kubeconfig"
    assert fakes.calls == [
        f"kind delete cluster --name lookout-test --kubeconfig {file}",
        f"kind create cluster --name lookout-test --kubeconfig {file} --wait 180s",
        "kind load docker-image localhost/lookout-decode:test localhost/lookout-tryout:test"
        " --name lookout-test",
        f"kind delete cluster --name lookout-test --kubeconfig {file}",
    ]
    assert cluster.environment()["KUBECONFIG"] == str(file)


def test_k3d_makes_and_removes_a_cluster(fakes: Fakes, tmp_path: Path) -> None:
    fakes.add("k3d", "lookout-test 1/1 0/0 true\n")
    cluster = MadeCluster("k3d")
    cluster.up()
    assert (tmp_path / "cache" / "k3d.kubeconfig").read_text().startswith("lookout-test")
    cluster.load_changed([image_name("decode")])
    cluster.down()
    assert fakes.calls == [
        "k3d cluster list --no-headers",
        "k3d cluster delete lookout-test",
        "k3d cluster create lookout-test --wait --timeout 180s"
        " --kubeconfig-update-default=false --kubeconfig-switch-context=false",
        "k3d kubeconfig get lookout-test",
        "k3d image import localhost/lookout-decode:test --cluster lookout-test",
        "k3d cluster list --no-headers",
        "k3d cluster delete lookout-test",
    ]


def test_what_kind_says_is_in_the_message(fakes: Fakes) -> None:
    fakes.add("kind", "no such image", code=1)
    with pytest.raises(ToolError, match=r"kind load docker-image .* ended with code 1:\nno such image"):
        ExistingCluster("kind-mine").load_changed(["localhost/lookout-decode:test"])


def test_a_context_without_a_way_for_images_is_refused(fakes: Fakes) -> None:
    for name in ("kubectl", "helm", "kcat"):
        fakes.add(name)
    with pytest.raises(ToolError, match="nodes of site: push them, and give --image-prefix"):
        ExistingCluster("site").check_programs()
    ExistingCluster("site", "registry.example/team/").check_programs()
    assert fakes.calls == []


@pytest.mark.parametrize("missing", ["kubectl", "helm", "kcat"])
def test_a_missing_program_is_named(fakes: Fakes, missing: str) -> None:
    for name in {"kubectl", "helm", "kcat"} - {missing}:
        fakes.add(name)
    with pytest.raises(ToolError, match=missing):
        ExistingCluster("site", "registry.example/team/").check_programs()


def test_a_cluster_that_is_there_is_asked_by_its_context(fakes: Fakes) -> None:
    fakes.add("kubectl", json.dumps(_NODES))
    fakes.add("helm")
    cluster = ExistingCluster("site", "registry.example/team/")
    assert cluster.join()
    assert cluster.address == "172.18.0.2"
    cluster.helm("list")
    cluster.load_changed(["registry.example/team/lookout-decode:1"])
    cluster.down()
    assert fakes.calls == [
        "kubectl --context site get nodes -o json",
        "helm --kube-context site list",
    ]


def test_only_namespaces_of_the_tests_are_deleted(fakes: Fakes) -> None:
    fakes.add("kubectl", "cameras")
    fakes.add("helm")
    command._clear(ExistingCluster("site"))
    assert fakes.calls[1:] == [
        "kubectl --context site get namespaces --selector lookout.dev/test-cluster=true"
        " -o jsonpath={.items[*].metadata.name}",
        "kubectl --context site delete namespace cameras --timeout=180s",
    ]


def test_a_namespace_of_somebody_else_is_refused(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ExistingCluster("site")
    fakes.add("kubectl", "default cameras")
    cluster.check_namespaces(("cameras",))
    monkeypatch.setattr(cluster, "namespaces", list)
    with pytest.raises(ToolError, match="namespace cameras of site was not made by these tests"):
        cluster.check_namespaces(("cameras", "second"))


def test_steps_that_need_our_nodes_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(existing.OWN_NODES) | set(existing.EVERYBODYS) <= set(STEPS)
    there = ExistingCluster("site")
    said = dict.fromkeys(["chart", "base", "policies"], "not run")
    assert command.possible(said, there, Progress()) == ["chart", "base"]
    assert "policies is left out: our own enforcement" in capsys.readouterr().out
    assert said["policies"].startswith("left out: our own enforcement")
    assert said["base"] == "not run"
    assert command.possible({"extensions": ""}, MadeCluster("kind"), Progress()) == ["extensions"]
    assert command.possible({"policies": ""}, Cluster(), Progress()) == ["policies"]
    with pytest.raises(ToolError, match="no step is left"):
        command.possible({"extensions": ""}, there, Progress())


@pytest.mark.parametrize(
    "wrong", [["--image-prefix", "a/"], ["--context", "x", "--image-prefix", "a/", "--resume"]]
)
def test_a_prefix_goes_with_a_context(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tests.cluster", *wrong])
    with pytest.raises(SystemExit):
        command.main()
    assert "LOOKOUT_IMAGE_PREFIX" not in os.environ


def test_images_have_the_prefix_of_where_they_were_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert image_name("decode") == "localhost/lookout-decode:test"
    monkeypatch.setenv("LOOKOUT_IMAGE_PREFIX", "registry.example/team/")
    assert image_name("decode", "1") == "registry.example/team/lookout-decode:1"
