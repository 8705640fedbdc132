"""The index of a checkpoint: a memory without its slabs, and the place of each cluster's slab."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookout.past.memory.clusters import NOBODY, Cluster, ClusterPartition
from lookout.past.memory.history import CameraMemory, LayerIndex, OpenBlock
from lookout.past.memory.packing import PackedRecord, checksum, ints, pack
from lookout.past.memory.slabs import Slab
from lookout.past.memory.types import BornBlock, Ints
from lookout.past.memory.visual import VisualLevel

COLUMNS = (
    "layer",
    "visual",
    "id",
    "count",
    "frame",
    "first",
    "last",
    "marked",
    "owner",
    "file",
    "offset",
)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a cluster's slab: its file, its first byte there, its number of tokens, and its
    checksum."""

    file: str
    offset: int
    count: int
    checksum: bytes


Seat = tuple[int, int, Cluster]
"""A cluster with its layer and its visual cluster."""


def seats(memory: CameraMemory) -> list[Seat]:
    """Return all clusters of a memory."""
    return [
        (layer, place, cluster)
        for layer in range(memory.shape.layers)
        for place, part in enumerate(memory.layers[layer].partitions)
        if part is not None
        for cluster in part.clusters
    ]


def pack_index(memory: CameraMemory, clusters: Sequence[Seat], where: Mapping[int, Place]) -> bytes:
    """Pack a memory into one record. `where` has the place of each cluster's slab, by the cluster's id."""
    table = memory.table
    members = [cluster for _, _, cluster in clusters]
    places = [where[cluster.id] for cluster in members]
    names = sorted({place.file for place in places})
    width, axes = memory.shape.width, memory.shape.axes
    rows = {
        "layer": [layer for layer, _, _ in clusters],
        "visual": [visual for _, visual, _ in clusters],
        "id": [c.id for c in members],
        "count": [c.count for c in members],
        "frame": [c.frame for c in members],
        "first": [c.first for c in members],
        "last": [c.last for c in members],
        "marked": [int(c.marked) for c in members],
        "owner": [c.owner for c in members],
        "file": [names.index(place.file) for place in places],
        "offset": [place.offset for place in places],
    }
    arrays: dict[str, Any] = {f"c.{key}": np.array(value, dtype=np.int64) for key, value in rows.items()}
    none = torch.zeros(0, width, dtype=memory.shape.wide)
    for name in ("unit", "key", "value"):
        arrays[f"c.{name}"] = torch.stack([getattr(c, name) for c in members]) if members else none
    arrays["c.place"] = np.array([c.place for c in members], dtype=np.int64).reshape(len(members), axes)
    arrays["c.checksum"] = np.frombuffer(b"".join(place.checksum for place in places), dtype=np.uint8)
    arrays["c.tokens"] = np.concatenate([np.zeros(0, np.int64), *(c.slab.tokens for c in members)])
    arrays["times"], arrays["blocks"] = table.times_us.all, table.blocks.all
    arrays["token_frame"], arrays["token_place"] = table.token_frame.all, table.token_place.all
    arrays["embeddings"] = torch.cat(table.embeddings) if table.embeddings else torch.zeros(0, 0)
    arrays["embedded"] = np.array([len(e) for e in table.embeddings], dtype=np.int64)
    if memory.visual is not None:
        arrays["visual.sums"], arrays["visual.counts"] = memory.visual.sums, memory.visual.counts
    arrays["frame_visual"] = np.array(sorted(memory.frame_visual.items()), np.int64).reshape(-1, 2)
    arrays["residency"] = np.array(memory.residency.order(), np.int64).reshape(-1, 2)
    for number, entry in enumerate(memory.open):
        arrays |= block_arrays(entry.block, f"open{number}.")
    header = {
        "version": memory.version,
        "ids": memory._ids,
        "held_from": memory.held_from,
        "scales": memory.scales,
        "scale": None if memory.visual is None else memory.visual.scale,
        "partitions": [len(index.partitions) for index in memory.layers],
        "forgotten": memory.forgotten,
        "count": {f.name: getattr(memory.count, f.name) for f in fields(memory.count)},
        "names": names,
        "open": [
            {**block_header(entry.block), "first_frame": entry.first_frame, "first_token": entry.first_token}
            for entry in memory.open
        ],
    }
    return pack(header, arrays)


def restore(
    memory: CameraMemory, record: PackedRecord, folder: Path, verify: bool, lose: Callable[[str], None]
) -> dict[int, Place]:
    """Fill an empty memory from an index.

    Args:
        memory: The memory to fill.
        record: The index.
        folder: Folder with the files of slabs.
        verify: Whether to compare every slab with its checksum.
        lose: Called with a sentence for each file whose clusters are lost. If it returns, the memory is
            filled without these clusters.

    Returns:
        The place of every cluster's slab, by the cluster's id.
    """
    header, arrays = record.header, record.arrays
    table = memory.table
    memory.version, memory._ids = header["version"], header["ids"]
    memory.held_from, memory.scales = header["held_from"], header["scales"]
    memory.forgotten = [(begin, end) for begin, end in header["forgotten"]]
    for kind in fields(memory.count):
        setattr(memory.count, kind.name, header["count"][kind.name])
    table.times_us.extend(ints(arrays["times"]))
    table.blocks.extend(ints(arrays["blocks"]))
    table.token_frame.extend(ints(arrays["token_frame"]))
    table.token_place.extend(ints(arrays["token_place"]))
    table.embeddings = list(torch.split(arrays["embeddings"], arrays["embedded"].tolist()))
    if header["scale"] is not None:
        memory.visual = VisualLevel(arrays["visual.sums"], arrays["visual.counts"], header["scale"])
    memory.frame_visual = dict(arrays["frame_visual"].tolist())
    memory.residency.restore((cluster, size) for cluster, size in arrays["residency"].tolist())
    memory.open = [
        OpenBlock(block_of(block, arrays, f"open{number}."), block["first_frame"], block["first_token"])
        for number, block in enumerate(header["open"])
    ]
    where, lost = _read_clusters(memory, record, folder, verify)
    for name, clusters in lost.items():
        lose(_loss(memory, folder / name, clusters))
    for cluster in (cluster for clusters in lost.values() for cluster in clusters):
        memory.residency.drop(cluster)
    memory.note_wide()
    return where


Lost = dict[str, dict[int, Ints]]
"""The tokens of each lost cluster, by the name of the damaged or missing file, then by the cluster's id."""


def _read_clusters(
    memory: CameraMemory, record: PackedRecord, folder: Path, verify: bool
) -> tuple[dict[int, Place], Lost]:
    shape, arrays, names = memory.shape, record.arrays, record.header["names"]
    maps = [_map(folder / name) for name in names]
    parts: list[list[list[Cluster]]] = [[[] for _ in range(count)] for count in record.header["partitions"]]
    where: dict[int, Place] = {}
    lost: Lost = {}
    for layer, visual, file, cluster, place in _rows(arrays):
        data = maps[file][place.offset : place.offset + place.count * shape.token_bytes]
        tokens = cluster.slab.tokens
        complete = len(data) == place.count * shape.token_bytes
        if not complete or (verify and checksum(data.tobytes()) != place.checksum):
            lost.setdefault(names[file], {})[cluster.id] = tokens
            continue
        kv = torch.from_numpy(data).view(shape.dtype).view(-1, 2, shape.kv_heads, shape.head_dim)
        where[cluster.id] = replace(place, file=names[file])
        parts[layer][visual].append(replace(cluster, slab=Slab.mapped(kv, tokens)))
    nothing = LayerIndex.empty(shape.width, shape.axes, shape.wide)
    memory.layers = [
        nothing.changed({number: _partition(part, where) for number, part in enumerate(layer)})
        for layer in parts
    ]
    return where, lost


def _rows(arrays: Mapping[str, torch.Tensor]) -> Iterator[tuple[int, int, int, Cluster, Place]]:
    """Yield, for each cluster: its layer, its visual cluster, the number of its file, the cluster without KV,
    and the place of its slab."""
    rows = {name: arrays[f"c.{name}"].tolist() for name in COLUMNS}
    tokens = np.split(ints(arrays["c.tokens"]), np.cumsum(rows["count"])[:-1])
    sums = [arrays[f"c.{name}"].unbind(0) for name in ("unit", "key", "value")]
    places, checksums = ints(arrays["c.place"]), arrays["c.checksum"].numpy().tobytes()
    for row, number in enumerate(rows["id"]):
        cluster = Cluster(
            id=number,
            slab=Slab.of(torch.zeros(len(tokens[row]), 0), tokens[row]),
            unit=sums[0][row],
            key=sums[1][row],
            value=sums[2][row],
            frame=rows["frame"][row],
            first=rows["first"][row],
            last=rows["last"][row],
            place=places[row],
            marked=bool(rows["marked"][row]),
            owner=rows["owner"][row],
        )
        place = Place("", rows["offset"][row], rows["count"][row], checksums[row * 16 : row * 16 + 16])
        yield rows["layer"][row], rows["visual"][row], rows["file"][row], cluster, place


def _partition(clusters: Sequence[Cluster], where: Mapping[int, Place]) -> ClusterPartition | None:
    """Return the partition with these clusters; None without clusters. Newcomers that waited for a lost
    cluster become independent clusters."""
    return (
        ClusterPartition(
            tuple(
                cluster if cluster.owner in where else replace(cluster, owner=NOBODY) for cluster in clusters
            )
        )
        if clusters
        else None
    )


def _loss(memory: CameraMemory, path: Path, clusters: Mapping[int, Ints]) -> str:
    frames, _ = memory.table.lookup(np.concatenate(list(clusters.values())))
    times = memory.table.times_us.all[frames] / 1e6
    reason = "is damaged: its checksum does not match" if path.is_file() else "is missing"
    return (
        f"{path}: {reason}; the KV of {len(frames)} tokens in {len(clusters)} clusters, between "
        f"{times.min():g} s and {times.max():g} s of the stream, is lost"
    )


def _map(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if not path.is_file() or not path.stat().st_size:
        return np.zeros(0, np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="c")


# Blocks as records.


def block_header(block: BornBlock) -> dict[str, Any]:
    """Return the JSON part of a block's record."""
    return {"stream": block.stream, "index": block.index}


def block_arrays(block: BornBlock, before: str) -> dict[str, Any]:
    """Return the arrays of a block's record, with `before` in front of their names."""
    names = ("times_us", "embeddings", "frame", "places", "step", "extent", "keys", "values")
    return {before + name: getattr(block, name) for name in names}


def block_of(header: Mapping[str, Any], arrays: Mapping[str, torch.Tensor], before: str) -> BornBlock:
    """Return the block of a record."""

    def numbers(name: str) -> Ints:
        return ints(arrays[before + name])

    return BornBlock(
        stream=str(header["stream"]),
        index=int(header["index"]),
        times_us=numbers("times_us"),
        embeddings=arrays[before + "embeddings"],
        frame=numbers("frame"),
        places=numbers("places"),
        step=numbers("step"),
        extent=numbers("extent"),
        keys=arrays[before + "keys"],
        values=arrays[before + "values"],
    )
