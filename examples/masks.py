"""See what pruning drops: python examples/masks.py clip.mp4 masks.png

One row for each policy, one picture for each second; dropped patches are dark.
"""

import sys

import numpy as np
from PIL import Image

import lookout
from lookout.pruning import PatchGrid, Sample, policy_of, prune_block

SIZE, PATCH, MERGE, STRIDE = (
    224,
    14,
    2,
    4,
)  # the model's input, its patches, patches of a token, samples of a block


def dimmed(frames: np.ndarray, policy: str) -> list[np.ndarray]:
    """The frames, uint8 [n, SIZE, SIZE, 3], with the patches dark that the policy drops."""
    grid = PatchGrid.merged(SIZE // PATCH, SIZE // PATCH, PATCH, MERGE)
    pictures, carry = [], None
    for start in range(0, len(frames), STRIDE):
        block = frames[start : start + STRIDE]
        masks, carry = prune_block([Sample(frame) for frame in block], grid, policy_of(policy), carry)
        for mask, frame in zip(masks, block, strict=True):
            light = np.kron(mask.keep, np.ones((PATCH * MERGE, PATCH * MERGE)))[..., None]
            pictures.append((frame * (0.25 + 0.75 * light)).astype(np.uint8))
    return pictures


def main(clip: str, picture: str) -> None:
    frames = lookout.VideoReader(clip).read(fps=1, size=(SIZE, SIZE)).pixels
    rows = [np.concatenate(dimmed(frames, policy)[:10], 1) for policy in ("default", "random")]
    Image.fromarray(np.concatenate(rows)).save(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
