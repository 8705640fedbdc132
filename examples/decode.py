"""Decode an untrusted segment in a sandbox: python examples/decode.py piece.ts"""

import sys
from pathlib import Path

from lookout.video.sandbox import SandboxPool
from lookout.video.segments import DecodeRequest


def main(path: str) -> None:
    with SandboxPool(workers=2) as pool:
        decoded = pool.decode(Path(path).read_bytes(), DecodeRequest(width=112, height=112))
    print(decoded.pixels.shape, decoded.pixels.dtype)  # the samples: uint8 [n, 112, 112, 3]
    print(
        decoded.facts.codec, decoded.facts.frames, decoded.facts.decoded
    )  # the codec, frames in the segment, frames decoded
    for frame in decoded.frames:  # each sample: stream time in µs, picture type, keyframe, damage
        print(frame.stream_us, frame.info.picture, frame.info.key, frame.info.corrupt)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
