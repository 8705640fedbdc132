"""Labels of tensors: their names and the facts in their references."""

from dataclasses import dataclass

import numpy as np

from lookout.runtime.store.errors import TensorCorruptError
from lookout.runtime.store.tensors import Array, checksum, numpy_dtype
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef
from lookout.wire import FLEET_KEYS, REDIS_KEYS


@dataclass(frozen=True, slots=True)
class Label:
    """Facts about a tensor. `entry` is its entry in `lookout.runtime.store.directory`."""

    key: str
    entry: str
    dtype: str
    shape: tuple[int, ...]
    length: int
    crc32c: int


def stage_keys(stage: int) -> str:
    """Return the prefix of a stage's keys in the directory. In a canary, decode's keys keep the fleet's
    prefix, because a canary reads the fleet's pixels.
    """
    return FLEET_KEYS if stage == STAGE_FRAMES else REDIS_KEYS


def camera_entries(camera: str, keys: str = REDIS_KEYS) -> str:
    """Return the prefix of the directory's keys of a camera's tensors; the camera is the hash tag."""
    # Braces in a camera's name would change the hash tag, so the keys would not be on the node that runs the
    # script.
    name = camera.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return f"{keys}{{{name}}}:"


def entry_of(ref: TensorRef) -> str:
    """Return the directory's key for a tensor: one for each input record and stage."""
    source = ref.input
    made_from = f"{source.topic}/{source.partition}/{source.offset}" if ref.HasField("input") else ref.id
    return f"{camera_entries(ref.camera, stage_keys(ref.stage))}{ref.stage}:{made_from}"


def labelled(ref: TensorRef, array: Array, dtype: str | None) -> tuple[Label, Array]:
    """Return the label of a tensor, and a contiguous read-only view of the array.

    Args:
        ref: Its reference.
        array: Its values; nobody may write to the array afterwards.
        dtype: The tensor's dtype. For "bfloat16", the array holds the bits as uint16. None: the array's
            dtype.

    Raises:
        ValueError: The reference has no id.
        TensorCorruptError: The array does not have this dtype, or the dtype cannot be sent.
    """
    if not ref.id:
        raise ValueError("a tensor reference needs an id")
    name = dtype or array.dtype.newbyteorder("=").name
    kind = numpy_dtype(name)
    if array.dtype.itemsize != kind.itemsize or (name != "bfloat16" and array.dtype.kind != kind.kind):
        raise TensorCorruptError(f"{ref.id} is {array.dtype}, not {name}")
    frozen = np.ascontiguousarray(array, dtype=kind).reshape(array.shape).view()
    frozen.flags.writeable = False
    return Label(ref.id, entry_of(ref), name, frozen.shape, frozen.nbytes, checksum(frozen)), frozen


def filled(ref: TensorRef, label: Label) -> TensorRef:
    """Return a copy of the reference with the label's shape, dtype, length and checksum."""
    complete = TensorRef()
    complete.CopyFrom(ref)
    del complete.shape[:]
    complete.shape.extend(label.shape)
    complete.dtype, complete.length, complete.crc32c = label.dtype, label.length, label.crc32c
    return complete
