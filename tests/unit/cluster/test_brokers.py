"""Redis' program lies on a volume that the brokers, which take any free one, must not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cluster import three_brokers
from tests.cluster.cluster import Cluster


class Recording(Cluster):
    """A cluster that notes in which order claims of volumes are made and waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def apply(self, objects: str, *options: str) -> str:
        for item in yaml.safe_load_all(objects):
            if item["kind"] == "PersistentVolumeClaim":
                self.steps.append(f"claims {item['spec']['volumeName']}")
            elif item.get("spec", {}).get("volumeClaimTemplates"):
                self.steps.append("claims any")
        return ""

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        if "wait" in arguments and "--for=jsonpath={.status.phase}=Bound" in arguments:
            self.steps.append(f"has {arguments[arguments.index('wait') + 2]}")
        return ""


def test_the_claim_of_one_volume_is_bound_before_those_of_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(three_brokers, "STATE", tmp_path)
    cluster = Recording()
    three_brokers.start(cluster, "cameras", "image")
    program = three_brokers.REDIS_PROGRAM
    assert cluster.steps == [f"claims {program}", f"has pvc/{program}", "claims any"]
