"""Volumes for a cluster without a provisioner: folders of the nodes, bound by hand."""

from __future__ import annotations

from typing import Any

import yaml

from tests.cluster.cluster import STATE, Cluster

CLASS = "node-folders"


def provide(cluster: Cluster, names: list[str], node: str = "node1") -> None:
    """Make one volume of 5 GiB on a node for each name; pods that use it run on that node."""
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
        folder = STATE / node / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        terms = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
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
                    "local": {"path": str(folder)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": terms}]}},
                },
            }
        )
    cluster.apply(yaml.safe_dump_all(objects))
