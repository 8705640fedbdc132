"""Figure 11: seconds of a stride by stage, from the camera's film to the answer of one question."""

from __future__ import annotations

from typing import Final

import lookout.streams.blocks
from bench.codecsight.policies import PAPER, WHOLE
from bench.codecsight.streams import Workplace, camera, encoded
from bench.codecsight.sweeps import owner_of, timers
from bench.codecsight.transmission import LINKS, STRIDE_S, sent
from bench.windows_fidelity import QUESTIONS, Setting, answered, default
from lookout.models.windows import LabelPolicy, Policy
from lookout.pruning import MaskPolicy, PrunePolicy
from lookout.video.segments import SoftwareDecoder

LINK: Final = "10 Mbit/s"
#: name of a way: its masks, how its windows are computed, and whether JPEGs of the samples are sent
WAYS: Final[dict[str, tuple[MaskPolicy, Setting, bool]]] = {
    "every token, JPEGs": (PrunePolicy(everything=True), WHOLE, True),
    "codecsight": (PAPER, Setting(LabelPolicy.FRAME, Policy.REFRESH), False),
    "default": (PrunePolicy(), default(), False),
    "faithful": (PrunePolicy(), default("faithful"), False),
}


def stages(place: Workplace) -> dict[str, dict[str, float]]:
    """By way, of one rendered camera: seconds of a stride over a modelled link, and CPU seconds of one thread
    in decoding, choosing patches, encoding and prefill (with one question). Where every token is computed,
    the frames of the whole window are encoded with every stride, as by a server without memory."""
    shown = camera(0, place)
    stream, jpegs, seconds = sent(shown.path, place.seconds)
    out = {}
    for name, (masks, setting, as_jpegs) in WAYS.items():
        calls = {
            "decode": (SoftwareDecoder, "decode"),
            "prune": (lookout.streams.blocks, "prune_block"),
            "encode": (owner_of(type(place.tower), "encode"), "encode"),
            "prefill": (owner_of(type(place.engine), "run"), "run"),
        }
        with timers(calls) as spent:
            blocks = encoded(shown, masks, place)
            found = answered(place.engine, [blocks], setting, place.cut, QUESTIONS[:1])
        size = (jpegs if as_jpegs else stream) / seconds * STRIDE_S
        row = {f"transmit, {LINK}": 8 * size / LINKS[LINK]}
        row |= {stage: spent[stage] / len(blocks) for stage in ("decode", "prune", "encode")}
        if setting is WHOLE:
            row["encode"] *= place.cut.blocks
        row["prefill"] = spent["prefill"] / len(found.since)
        out[name] = {stage: round(value, 4) for stage, value in row.items()}
        out[name]["together"] = round(sum(row.values()), 4)
    return out
