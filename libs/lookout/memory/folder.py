"""A memory on disk that survives SIGKILL at any instruction.

A folder holds a checkpoint and the records since. The checkpoint is data files of slabs, an index that names
each cluster's byte range and checksum, and a manifest that names them all. The manifest is replaced last,
once everything it names has reached the disk. Records (blocks, fetches of answers) are appended and synced.
Opening reads the checkpoint and repeats the records, which gives the same memory to the bit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import torch

from lookout.memory.clusters import Cluster, Partition
from lookout.memory.history import CameraMemory, LayerIndex, OpenBlock
from lookout.memory.packing import checksum, ints, pack, unpack
from lookout.memory.slabs import Slab
from lookout.memory.types import (
    BornBlock,
    HistoryError,
    Ints,
    Keep,
    KVShape,
    MemorySettings,
    Prefix,
    SplitMode,
    ThresholdRule,
    raw,
)
from lookout.memory.visual import VisualLevel

FORMAT = 1
MANIFEST, META, LOCK = "manifest.json", "meta.bin", "owner.lock"


class MemoryFolder:
    """A camera's memory in a folder. One owner at a time feeds it; others may read copies of its files."""

    def __init__(
        self, folder: Path, memory: CameraMemory, about: Mapping[str, Any], *, every: int = 64
    ) -> None:
        """Use `create` or `open`. `every` is the number of records between checkpoints."""
        self.folder, self.memory, self.about, self.every = folder, memory, dict(about), every
        self.version = 0
        self.fed_s = time.time()
        self._pending = 0
        self._places: dict[int, tuple[str, int, int, bytes]] = {}
        self._lock = threading.RLock()
        self._log: Any = None
        self._owner: IO[str] | None = None

    # Making and opening.

    @classmethod
    def create(
        cls,
        folder: Path | str,
        shape: KVShape,
        prefix: Prefix,
        settings: MemorySettings | None = None,
        *,
        bias: torch.Tensor | None = None,
        keep: Keep | None = None,
        about: Mapping[str, Any] | None = None,
        every: int = 64,
    ) -> Self:
        """A new memory in an empty or missing folder; `about` says what it is of, as JSON.

        Raises:
            HistoryError: there is a memory already.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        if (path / META).exists():
            raise HistoryError(f"{path} holds a memory already: open it, or give another folder")
        memory = CameraMemory(shape, prefix, settings, bias=bias, keep=keep)
        made = cls(path, memory, about or {}, every=every)
        made._owner = lock(path)
        header = {
            "format": FORMAT,
            "about": made.about,
            "shape": {**asdict(shape), "dtype": str(shape.dtype).removeprefix("torch.")},
            "settings": asdict(memory.settings),
            "keep": asdict(memory.keep),
        }
        arrays: dict[str, Any] = {
            "positions": prefix.positions,
            "keys": prefix.keys,
            "values": prefix.values,
            "bias": memory.bias,
        }
        _write(path / META, pack(header, arrays))
        made._begin_log()
        return made

    @classmethod
    def open(cls, folder: Path | str, *, owner: bool = True, every: int = 64, verify: bool = True) -> Self:
        """The memory of a folder as its last complete record left it.

        Args:
            folder: made by `create`.
            owner: go on with it; else only read it, while another process may own it.
            every: records between checkpoints.
            verify: check every slab against its checksum.

        Raises:
            HistoryError: there is none, another process owns it, or what it names is missing or damaged.
        """
        path = Path(folder)
        if not (path / META).is_file():
            raise HistoryError(f"{path} holds no memory: {META} is missing")
        header, arrays, _ = unpack(memoryview((path / META).read_bytes()), str(path / META))
        if header["format"] != FORMAT:
            raise HistoryError(f"{path}: written in format {header['format']}; this version reads {FORMAT}")
        fields = {**header["shape"], "dtype": getattr(torch, header["shape"]["dtype"])}
        named = header["settings"]
        named |= {"rule": ThresholdRule(named["rule"]), "split": SplitMode(named["split"])}
        memory = CameraMemory(
            KVShape(**fields),
            Prefix(ints(arrays["positions"]), arrays["keys"], arrays["values"]),
            MemorySettings(**named),
            bias=arrays["bias"],
            keep=Keep(**header["keep"]),
        )
        found = cls(path, memory, header["about"], every=every)
        if owner:
            found._owner = lock(path)
        if (path / MANIFEST).is_file():
            found._read_checkpoint(verify)
        found._replay()
        if owner:
            found._begin_log()
            found._sweep()
        return found

    @classmethod
    def about_of(cls, folder: Path | str) -> dict[str, Any]:
        """What a folder's memory is of, without reading it.

        Raises:
            HistoryError: There is no memory in it.
        """
        path = Path(folder) / META
        if not path.is_file():
            raise HistoryError(f"{folder} holds no memory: {META} is missing")
        header, _, _ = unpack(memoryview(path.read_bytes()), str(path))
        about: dict[str, Any] = header["about"]
        return about

    @classmethod
    def fed_at(cls, folder: Path | str) -> float:
        """When a folder's memory last took in a block, in seconds since 1970. To open it, to ask and to erase
        does not count. Records since the last checkpoint do, whatever they are."""
        path = Path(folder)
        manifest = path / MANIFEST
        fed = (manifest if manifest.is_file() else path / META).stat().st_mtime
        with contextlib.suppress(OSError, ValueError, KeyError):
            fed = float(json.loads(manifest.read_text())["fed_s"])
        logs = [log.stat() for log in path.glob("records-*.log")]
        return max([fed, *(log.st_mtime for log in logs if log.st_size)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Changing: apply, then record. What was not recorded did not happen.

    def add(self, block: BornBlock) -> None:
        """Take in a closed block and record it."""
        with self._lock:
            self.memory.add(block)
            self.fed_s = time.time()
            header = {"kind": "block", "fed_s": self.fed_s, **_block_header(block)}
            self._record(header, _block_arrays(block, ""))

    def settle(self, fetched: Mapping[int, Iterable[int]]) -> None:
        """Carry out the splits that an answer's fetches allow, and record the fetches."""
        ids_by_layer = {layer: sorted(ids) for layer, ids in fetched.items()}
        with self._lock:
            self.memory.settle(ids_by_layer)
            self._record({"kind": "fetched", "ids": ids_by_layer}, {})

    def forget(self, begin_us: int, end_us: int) -> int:
        """Erase a time range (microseconds of stream time) wholly: when this returns, no file of the folder
        holds anything of it.

        Returns:
            The number of frames erased.
        """
        with self._lock:
            count = self.memory.forget(begin_us, end_us)
            self._places.clear()
            self.checkpoint()
            return count

    def close(self) -> None:
        """Write a checkpoint if there is anything new, and let the files go."""
        with self._lock:
            if self._log is not None:
                if self._pending:
                    self.checkpoint()
                self._log.close()
                self._log = None
            if self._owner is not None:
                self._owner.close()
                self._owner = None

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files of the folder."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def _record(self, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        if self._log is None:
            raise HistoryError(f"{self.folder}: this memory is closed, or open for reading only")
        self._log.write(pack(header, arrays))
        self._log.flush()
        os.fsync(self._log.fileno())
        self._pending += 1
        if self._pending >= self.every:
            self.checkpoint()

    def _begin_log(self) -> None:
        path = self.folder / f"records-{self.version:08d}.log"
        self._log = path.open("ab")
        os.fsync(self._log.fileno())
        _sync(self.folder)

    # Checkpoints.

    def checkpoint(self) -> None:
        """Write what changed since the last checkpoint, then the manifest, then remove what it replaces."""
        with self._lock:
            version = self.version + 1
            clusters = [
                (layer, place, cluster)
                for layer in range(self.memory.shape.layers)
                for place, part in enumerate(self.memory.layers[layer].partitions)
                if part is not None
                for cluster in part.clusters
            ]
            self._drop_sparse_files({cluster.id: cluster.count for _, _, cluster in clusters})
            self._write_slabs(version, [cluster for _, _, cluster in clusters])
            index = f"index-{version:08d}.bin"
            data = self._index(clusters)
            _write(self.folder / index, data)
            log = self._log
            self.version, self._pending = version, 0
            self._begin_log()
            manifest = {
                "format": FORMAT,
                "version": version,
                "fed_s": self.fed_s,
                "index": index,
                "checksum": checksum(data).hex(),
                "files": sorted({place[0] for place in self._places.values()}),
            }
            _write(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode())
            if log is not None:
                log.close()
            self._sweep()

    def _write_slabs(self, version: int, clusters: list[Cluster]) -> None:
        """One data file of every slab that no file holds yet."""
        held = {cluster.id for cluster in clusters}
        self._places = {number: place for number, place in self._places.items() if number in held}
        fresh = [c for c in clusters if self._places.get(c.id, ("", 0, -1, b""))[2] != c.count]
        if not fresh:
            return
        name, offset = f"slabs-{version:08d}.bin", 0
        with (self.folder / name).open("wb") as file:
            for cluster in fresh:
                data = raw(cluster.slab.data).tobytes()
                file.write(data)
                self._places[cluster.id] = (name, offset, cluster.count, checksum(data))
                offset += len(data)
            file.flush()
            os.fsync(file.fileno())
        _sync(self.folder)

    def _drop_sparse_files(self, counts: Mapping[int, int]) -> None:
        """Write the living slabs of files that are mostly dead again, so that files can go."""
        per_token = self.memory.shape.token_bytes
        living: dict[str, int] = {}
        for number, (name, _, count, _) in self._places.items():
            if counts.get(number) == count:
                living[name] = living.get(name, 0) + count * per_token
        for name, size in living.items():
            path = self.folder / name
            if path.is_file() and size < path.stat().st_size / 2:
                self._places = {n: place for n, place in self._places.items() if place[0] != name}

    def _index(self, clusters: list[tuple[int, int, Cluster]]) -> bytes:
        memory, table = self.memory, self.memory.table
        every = [cluster for _, _, cluster in clusters]
        places = [self._places[cluster.id] for cluster in every]
        names = sorted({place[0] for place in places})
        width, axes = memory.shape.width, memory.shape.axes
        rows = {
            "layer": [layer for layer, _, _ in clusters],
            "visual": [place for _, place, _ in clusters],
            "id": [c.id for c in every],
            "count": [c.count for c in every],
            "frame": [c.frame for c in every],
            "first": [c.first for c in every],
            "last": [c.last for c in every],
            "marked": [int(c.marked) for c in every],
            "owner": [c.owner for c in every],
            "file": [names.index(place[0]) for place in places],
            "offset": [place[1] for place in places],
        }
        arrays: dict[str, Any] = {f"c.{key}": np.array(value, dtype=np.int64) for key, value in rows.items()}
        none = torch.zeros(0, width, dtype=memory.shape.wide)
        for name in ("unit", "key", "value"):
            arrays[f"c.{name}"] = torch.stack([getattr(c, name) for c in every]) if every else none
        arrays["c.place"] = np.array([c.place for c in every], dtype=np.int64).reshape(len(every), axes)
        arrays["c.checksum"] = np.frombuffer(b"".join(place[3] for place in places), dtype=np.uint8)
        arrays["c.tokens"] = np.concatenate([np.zeros(0, np.int64), *(c.slab.tokens for c in every)])
        arrays["times"], arrays["blocks"] = table.times_us.all, table.blocks.all
        arrays["token_frame"], arrays["token_place"] = table.token_frame.all, table.token_place.all
        arrays["embeddings"] = torch.cat(table.embeddings) if table.embeddings else torch.zeros(0, 0)
        arrays["embedded"] = np.array([len(e) for e in table.embeddings], dtype=np.int64)
        if memory.visual is not None:
            arrays["visual.sums"], arrays["visual.counts"] = memory.visual.sums, memory.visual.counts
        arrays["frame_visual"] = np.array(sorted(memory.frame_visual.items()), np.int64).reshape(-1, 2)
        arrays["residency"] = np.array(memory.residency.order(), np.int64).reshape(-1, 2)
        for number, one in enumerate(memory.open):
            arrays |= _block_arrays(one.block, f"open{number}.")
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
                {**_block_header(one.block), "first_frame": one.first_frame, "first_token": one.first_token}
                for one in memory.open
            ],
        }
        return pack(header, arrays)

    def _read_checkpoint(self, verify: bool) -> None:
        manifest = json.loads((self.folder / MANIFEST).read_text())
        path = self.folder / manifest["index"]
        if not path.is_file():
            raise HistoryError(f"{self.folder}: {manifest['index']} is missing")
        data = path.read_bytes()
        if checksum(data).hex() != manifest["checksum"]:
            raise HistoryError(f"{path}: damaged: its checksum does not fit the manifest")
        header, arrays, _ = unpack(memoryview(data), str(path))
        self.version, self.fed_s = int(manifest["version"]), self.fed_at(self.folder)
        memory, table = self.memory, self.memory.table
        memory.version, memory._ids = header["version"], header["ids"]
        memory.held_from, memory.scales = header["held_from"], header["scales"]
        memory.forgotten = [(a, b) for a, b in header["forgotten"]]
        for name, value in header["count"].items():
            setattr(memory.count, name, value)
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
            OpenBlock(_block(block, arrays, f"open{number}."), block["first_frame"], block["first_token"])
            for number, block in enumerate(header["open"])
        ]
        self._read_clusters(header, arrays, verify)
        memory.note_wide()

    def _read_clusters(
        self, header: Mapping[str, Any], arrays: Mapping[str, torch.Tensor], verify: bool
    ) -> None:
        shape = self.memory.shape
        rows = {name: arrays[f"c.{name}"].tolist() for name in _COLUMNS}
        tokens = np.split(ints(arrays["c.tokens"]), np.cumsum(rows["count"])[:-1])
        sums = [arrays[f"c.{name}"].unbind(0) for name in ("unit", "key", "value")]
        places, checksums = ints(arrays["c.place"]), arrays["c.checksum"].numpy().tobytes()
        maps = [self._map(name) for name in header["names"]]
        parts: list[list[list[Cluster]]] = [[[] for _ in range(count)] for count in header["partitions"]]
        for row, number in enumerate(rows["id"]):
            begin, size = rows["offset"][row], rows["count"][row] * shape.token_bytes
            data = maps[rows["file"][row]][begin : begin + size]
            name, check = header["names"][rows["file"][row]], checksums[row * 16 : row * 16 + 16]
            if len(data) != size or (verify and checksum(data.tobytes()) != check):
                raise HistoryError(
                    f"{self.folder / name}: cluster {number} at byte {begin} is damaged: its checksum does "
                    "not fit the index"
                )
            self._places[number] = (name, begin, rows["count"][row], check)
            slab = Slab.mapped(
                torch.from_numpy(data).view(shape.dtype).view(-1, 2, shape.kv_heads, shape.head_dim),
                tokens[row],
            )
            parts[rows["layer"][row]][rows["visual"][row]].append(
                Cluster(
                    id=number,
                    slab=slab,
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
            )
        nothing = LayerIndex.empty(shape.width, shape.axes, shape.wide)
        self.memory.layers = [
            nothing.changed({place: Partition(tuple(p)) if p else None for place, p in enumerate(layer)})
            for layer in parts
        ]

    def _map(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        path = self.folder / name
        if not path.is_file():
            raise HistoryError(f"{self.folder}: {name} is missing")
        return np.memmap(path, dtype=np.uint8, mode="c")

    # Records.

    def _replay(self) -> None:
        """Do the records since the checkpoint again; one that was cut short at the end did not happen."""
        path = self.folder / f"records-{self.version:08d}.log"
        data = memoryview(path.read_bytes() if path.is_file() else b"")
        place = count = 0
        while place < len(data):
            try:
                header, arrays, size = unpack(data[place:], f"{path} at byte {place}")
            except HistoryError:
                break
            self._do(header, arrays)
            place += size
            count += 1
        if place < len(data) and self._owner is not None:
            with path.open("r+b") as file:
                file.truncate(place)
                os.fsync(file.fileno())
        self._pending = count

    def _do(self, header: dict[str, Any], arrays: Mapping[str, torch.Tensor]) -> None:
        if header["kind"] == "block":
            self.memory.add(_block(header, arrays, ""))
            self.fed_s = float(header.get("fed_s", self.fed_s))
        elif header["kind"] == "fetched":
            self.memory.settle({int(layer): ids for layer, ids in header["ids"].items()})
        else:
            raise HistoryError(f"{self.folder}: a record of unknown kind {header['kind']!r}")

    def _sweep(self) -> None:
        """Remove files that neither the manifest nor the present records need."""
        if not (self.folder / MANIFEST).is_file():
            return
        manifest = json.loads((self.folder / MANIFEST).read_text())
        wanted = {*manifest["files"], manifest["index"], f"records-{manifest['version']:08d}.log"}
        for pattern in ("slabs-*.bin", "index-*.bin", "records-*.log", "*.part"):
            for path in self.folder.glob(pattern):
                if path.name not in wanted:
                    path.unlink(missing_ok=True)
        _sync(self.folder)


_COLUMNS = (
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


def lock(folder: Path) -> IO[str]:
    """Own a folder: one process at a time writes it. Closing the file, or the process's death, ends it.

    Raises:
        HistoryError: another process owns it.
    """
    owner = (folder / LOCK).open("w")
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner.close()
        raise HistoryError(f"{folder}: another process is writing this memory") from error
    return owner


def _block_header(block: BornBlock) -> dict[str, Any]:
    return {"stream": block.stream, "index": block.index}


def _block_arrays(block: BornBlock, before: str) -> dict[str, Any]:
    names = ("times_us", "embeddings", "frame", "places", "step", "extent", "keys", "values")
    return {before + name: getattr(block, name) for name in names}


def _block(header: Mapping[str, Any], arrays: Mapping[str, torch.Tensor], before: str) -> BornBlock:
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


def _write(path: Path, data: bytes) -> None:
    """A file whole or not at all, on the disk when this returns."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make renames and new files of a folder durable."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
