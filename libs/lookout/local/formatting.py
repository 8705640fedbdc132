"""Prepares Kafka's data folders for their first start.

Kafka's tool for this starts Java and writes two files. One identifies the folder. The other contains a
cluster's initial metadata. It depends only on Kafka's version, so it is cached, and the tool runs only once
per machine.
"""

from __future__ import annotations

import base64
import contextlib
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from lookout.disk import FILE_MODE, is_own, private_folder, replace_file
from lookout.local.addresses import cache_folder
from lookout.local.jars import KAFKA

META = "meta.properties"
_METADATA = "bootstrap.checkpoint"


def format_data(data: Path, node: str, run: Callable[[str], None]) -> None:
    """Prepare the data folder of a new cluster with one node.

    Args:
        data: The folder.
        node: The node's id.
        run: Runs Kafka's tool on the folder; its argument is the cluster's id.
    """
    # Avoid random base64 ids, because the tool would take one that starts with '-' for an option.
    cluster = "L" + uuid.uuid4().hex[:21]
    cached = cache_folder() / f"kafka-metadata-{KAFKA.rpartition(':')[2]}"
    if not is_own(cached):
        run(cluster)
        # If the cache cannot be written, as in an image, the tool runs again next time.
        with contextlib.suppress(OSError):
            _keep(data / _METADATA, cached)
        return
    private_folder(data)
    replace_file(data / _METADATA, cached.read_bytes())
    directory = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    lines = ("version=1", f"cluster.id={cluster}", f"node.id={node}", f"directory.id={directory}")
    # Written last, because this file marks the folder as complete.
    replace_file(data / META, "".join(f"{line}\n" for line in lines).encode())


def _keep(written: Path, cached: Path) -> None:
    """Move the metadata that the tool wrote into the cache, atomically, so that readers never see a partial
    file.
    """
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=cached.parent) as scratch:
        fresh = Path(scratch) / cached.name
        fresh.write_bytes(written.read_bytes())
        fresh.chmod(FILE_MODE)
        fresh.replace(cached)
