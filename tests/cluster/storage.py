"""Volumes for a cluster without a provisioner: folders of the nodes, bound by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.cluster import STATE, Cluster

CLASS = "node-folders"
_NODE = "node1"


def folder(name: str) -> Path:
    """Return the folder behind a volume; every user may write."""
    path = STATE / _NODE / "volumes" / name
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    return path


def provide(cluster: Cluster, names: list[str]) -> None:
    """Make one volume of 5 GiB for each name; pods that use it run on the first node."""
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for name in names:
        terms = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [_NODE]}]
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "5Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": CLASS,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": {"path": str(folder(name))},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": terms}]}},
                },
            }
        )
    cluster.apply(yaml.safe_dump_all(objects))


def claim(name: str) -> str:
    """Return a claim of the volume of the same name, as YAML."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "volumeName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return yaml.safe_dump(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
    )


def remove(cluster: Cluster, names: list[str]) -> None:
    """Remove the volumes, what is in them, and their class."""
    cluster.kubectl("delete", "pv", *names, "--ignore-not-found", "--timeout=60s", check=False)
    cluster.kubectl("delete", "storageclass", CLASS, "--ignore-not-found", check=False)
    for name in names:
        shutil.rmtree(folder(name), ignore_errors=True)
