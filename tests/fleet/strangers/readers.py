"""Strange inputs that this process reads with the project's own readers: replies of decoders, and folders."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lookout.errors import LookoutError
from lookout.local import Fleet, LocalError
from lookout.past.memory import MemoryFolder
from lookout.v1.cameras_pb2 import Camera
from lookout.video.sandbox.reply_reader import BugError, ReplyError
from lookout.video.segments import CodecError
from tests import mutations
from tests.fleet.strangers.tally import Door, Tally
from tests.unit.past.memory.records import SHAPE, SMALL, block, prefix, scene_of
from tests.unit.video.sandbox.reply_case import WAYS, honest_cases, read_strange

Chance = random.Random
_REPLIES, _HEAVY, _MEMORIES, _FOLDERS = 700, 60, 12, 1
_SLOW: Final = frozenset({"large-text", "long-list", "nested"})
_BYTES: Final = {name: change for name, change in mutations.BYTES.items() if name != "noise"}


def replies_door(folder: Path, chance: Chance, tally: Tally) -> Door:
    """What a decoder process that strangers took over replies."""
    cases = honest_cases(folder)

    def send(kind: str, way: str) -> None:
        with tally.trying(kind, ReplyError, CodecError, BugError):
            read_strange(cases, way, chance)

    return Door(
        "reply",
        {
            way: (
                (lambda kind=f"reply {way}", way=way: send(kind, way)),  # type: ignore[misc]
                _HEAVY if way in _SLOW else _REPLIES,
            )
            for way in WAYS
        },
    )


def memory_door(folder: Path, chance: Chance, tally: Tally) -> Door:
    """Folders of memories that strangers changed, opened as `lookout ask` opens them."""
    honest = folder / "honest"
    with MemoryFolder.create(honest, SHAPE, prefix(), SMALL, about={"camera": "gate"}, every=99) as memory:
        for index in range(12):
            memory.add(block(index, seed=3, scene=scene_of(index, 3)))
            if index == 7:
                memory.checkpoint()
    names = sorted(path.name for path in honest.iterdir() if path.is_file() and path.stat().st_size)

    def opened(kind: str, change: Callable[[Path], Any]) -> None:
        target = folder / "strange"
        shutil.copytree(honest, target, symlinks=True)
        try:
            change(target)
            with (
                tally.trying(kind, LookoutError, OSError),
                MemoryFolder.open(target, salvage=chance.random() < 0.5) as memory,
            ):
                memory.forget(0, 1_000_000)
        finally:
            shutil.rmtree(target)

    def bytes_of(change: mutations.Mutation) -> Callable[[Path], Any]:
        def changed(target: Path) -> None:
            path = target / chance.choice(names)
            path.write_bytes(change(path.read_bytes(), Camera, chance))

        return changed

    def linked(target: Path) -> None:
        path = target / chance.choice(names)
        path.unlink()
        path.symlink_to(chance.choice(("/etc/passwd", "/dev/zero", "/nowhere", str(target))))

    def pipe(target: Path) -> None:
        path = target / chance.choice(names)
        path.unlink()
        path.mkdir()

    changes = {
        **{name: bytes_of(change) for name, change in _BYTES.items()},
        "link": linked,
        "folder-for-a-file": pipe,
        "file-missing": lambda target: (target / chance.choice(names)).unlink(),
        "file-of-another": lambda target: shutil.copy(
            target / chance.choice(names), target / f"x-{chance.choice(names)}"
        ),
        "files-exchanged": lambda target: os.replace(
            target / chance.choice(names), target / chance.choice(names)
        ),
    }
    return Door("memory-folder", _bound("memory-folder", changes, opened, _MEMORIES))


def checkpoint_door(folder: Path, model: Path, chance: Chance, tally: Tally) -> Door:
    """Checkpoint folders of strangers, read as every service reads them before it loads weights."""
    from lookout.models import find_model, window_defaults
    from lookout.models.families.loading import load_tower

    load_tower(find_model(model))  # what is imported at the first one counts for no input

    def opened(kind: str, change: Callable[[Path], Any]) -> None:
        target = folder / "strange-model"
        shutil.copytree(model, target)
        try:
            change(target)
            with tally.trying(kind, LookoutError, OSError):
                found = find_model(target)
                window_defaults(found)
                load_tower(found)
        finally:
            shutil.rmtree(target)

    def config(**changes: Any) -> Callable[[Path], Any]:
        def changed(target: Path) -> None:
            path = target / "config.json"
            whole = json.loads(path.read_text())
            for name, value in changes.items():
                part = whole
                *parents, last = name.split("__")
                for parent in parents:
                    part = part[parent]
                part[last] = value
            path.write_text(json.dumps(whole))

        return changed

    def file_of(name: str, change: mutations.Mutation) -> Callable[[Path], Any]:
        return lambda target: (target / name).write_bytes(
            change((target / name).read_bytes(), Camera, chance)
        )

    def header(**tensor: Any) -> Callable[[Path], Any]:
        def changed(target: Path) -> None:
            path = target / "model.safetensors"
            data = path.read_bytes()
            (length,) = struct.unpack("<Q", data[:8])
            facts = json.loads(data[8 : 8 + length])
            name = chance.choice([key for key in facts if key != "__metadata__"])
            facts[name].update(tensor)
            text = json.dumps(facts).encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

        return changed

    def pickled(target: Path) -> None:
        (target / "model.safetensors").unlink()
        mark = folder / "ran"
        code = b"cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
        (target / "pytorch_model.bin").write_bytes(code)

    def remote_code(target: Path) -> None:
        mark = folder / "ran"
        (target / "stranger.py").write_text(
            f"open({str(mark)!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
        )
        config(
            auto_map={"AutoConfig": "stranger.Config", "AutoModel": "stranger.Model"}, model_type="stranger"
        )(target)

    def check_run(kind: str, change: Callable[[Path], Any]) -> None:
        opened(kind, change)
        if (folder / "ran").exists():
            tally.crashes.append(f"{kind}: code of the checkpoint ran")

    length = struct.pack("<Q", 1 << 62)
    changes = {
        **{f"config-{name}": file_of("config.json", change) for name, change in mutations.JSON.items()},
        **{f"weights-{name}": file_of("model.safetensors", change) for name, change in _BYTES.items()},
        "weights-header-length": lambda target: (target / "model.safetensors").write_bytes(
            length + bytes(100)
        ),
        "weights-shape": header(shape=[1 << 40, 1 << 40]),
        "weights-offsets": header(data_offsets=[0, 1 << 62]),
        "weights-type": header(dtype="F4096"),
        "many-layers": config(vision_config__num_hidden_layers=10**7),
        "wide-layers": config(vision_config__hidden_size=10**8),
        "family-unknown": config(model_type="stranger"),
        "family-strange-text": config(model_type="\x1b[2J../../x"),
        "windows-strange": lambda target: (target / "lookout_windows.json").write_bytes(
            mutations.JSON["absurd-number"]((target / "lookout_windows.json").read_bytes(), Camera, chance)
        ),
        "pickle-for-weights": pickled,
        "code-beside-config": remote_code,
        "config-link": lambda target: (
            (target / "config.json").unlink(),
            (target / "config.json").symlink_to("/dev/zero"),
        ),
    }
    return Door("checkpoint-folder", _bound("checkpoint-folder", changes, check_run, 3))


def data_door(folder: Path, tally: Tally) -> Door:
    """Folders that strangers prepared for `lookout up --data`: nothing outside may change."""
    victim = folder / "victim"

    def started(kind: str, change: Callable[[Path], Any]) -> None:
        target = folder / "strange-data"
        victim.mkdir()
        (victim / "file").write_text("honest")
        target.mkdir()
        try:
            change(target)
            fleet = Fleet(target, stages=(), redis_url="redis://127.0.0.1:1/0")
            with tally.trying(kind, LocalError, OSError), fleet:
                pass
            if (victim / "file").read_text() != "honest" or len(list(victim.iterdir())) != 1:
                tally.crashes.append(f"{kind}: something outside of the folder changed")
        finally:
            shutil.rmtree(victim)
            shutil.rmtree(target)

    def link(name: str, place: str) -> Callable[[Path], Any]:
        def changed(target: Path) -> None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).symlink_to(victim / place)

        return changed

    def file(name: str, data: bytes) -> Callable[[Path], Any]:
        def changed(target: Path) -> None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(data)

        return changed

    changes = {
        "token-link": link("grpc-token", "file"),
        "running-link": link(".running", "file"),
        "log-link": link("kafka/kafka.log", "file"),
        "properties-link": link("kafka/server.properties", "file"),
        "kafka-folder-link": link("kafka", "."),
        "meta-noise": file("kafka/data/meta.properties", b"\xff\xfe\0noise"),
        "meta-other-cluster": file("kafka/data/meta.properties", b"version=1\ncluster.id=x\nnode.id=9\n"),
        "file-for-a-folder": file("kafka", b"x"),
    }
    return Door("data-folder", _bound("data-folder", changes, started, _FOLDERS))


def _bound(
    name: str,
    changes: Mapping[str, Callable[[Path], Any]],
    attempt: Callable[[str, Callable[[Path], Any]], None],
    count: int,
) -> dict[str, tuple[Callable[[], None], int]]:
    return {
        way: ((lambda kind=f"{name} {way}", change=change: attempt(kind, change)), count)  # type: ignore[misc]
        for way, change in changes.items()
    }
