"""Runs in decode's image for arm64: decodes segments in confined processes, as decode does.

``python arm_probe.py FOLDER``. The last line is JSON: how a decoder was confined, and for each of the
folder's segments the digests of its samples' pixels and of their motion.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path

from lookout.pruning import GatherSettings
from lookout.streams.requests import decode_request
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.segments import DecodedSegment

#: the tiny model's input and patch
_INPUT, _PATCH = 112, 14
#: an emulated machine is slow: nothing here is a question of time
_LONG_S = 3600.0
_CONFINE = "from lookout.video.sandbox.confine import confine; print(confine())"


def digests(decoded: DecodedSegment) -> dict[str, str]:
    """Digests of what a segment was decoded into."""
    motion = hashlib.sha256()
    for frame in decoded.frames:
        motion.update(f"{frame.slot} {frame.motion and frame.motion.basis};".encode())
        grids = (frame.motion.v, frame.motion.r) if frame.motion else ()
        for grid in grids:
            motion.update(b"" if grid is None else grid.tobytes())
    return {"pixels": hashlib.sha256(decoded.pixels.tobytes()).hexdigest(), "motion": motion.hexdigest()}


def main() -> None:
    """Decode every segment."""
    confined = subprocess.run([sys.executable, "-c", _CONFINE], check=True, capture_output=True, text=True)
    gather = GatherSettings(_INPUT // _PATCH, _INPUT // _PATCH, _PATCH)
    request = decode_request(_INPUT, _INPUT, gather=gather)
    limits = SandboxSettings(cpu_s=_LONG_S, wall_s=_LONG_S, start_s=_LONG_S, modules=("lookout.pruning",))
    with SandboxPool(1, limits) as pool:
        found = {
            path.name: digests(pool.decode(path.read_bytes(), request))
            for path in sorted(Path(sys.argv[1]).glob("*.ts"))
        }
    facts = {"processor": platform.machine(), "decoders": confined.stdout.strip(), "segments": found}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
