"""See what pruning drops: python examples/masks.py clip.mp4 masks.png [default ...]

The picture has one row per policy (default and codecsight, if you name none) and one frame per second;
dropped patches are dark.
"""

import sys

import numpy as np
from PIL import Image

import lookout
from lookout.models.vision import Grid
from lookout.pruning import PatchGrid, policy_of, prune_block
from lookout.streams.samples import read_clip

SIZE, PATCH, MERGE, STRIDE = (
    224,
    14,
    2,
    4,
)  # the model's input size, the patch size, patches along a token's side, samples per block


def dimmed(clip: str, name: str) -> list[np.ndarray]:
    """Return frames, uint8 [SIZE, SIZE, 3], in which the patches that the policy drops are dark."""
    policy, side = policy_of(name), SIZE // PATCH
    grid = PatchGrid.merged(side, side, PATCH, MERGE)
    model_input = Grid(side, side, PATCH, 1, grid.row_taps, grid.col_taps, hidden=1)
    # Motion vectors are read only if the policy needs them.
    frames = read_clip(clip, model_input, fps=1, vectors=policy.gathers).frames
    pictures, carry = [], None
    for start in range(0, len(frames), STRIDE):
        block = [frame.sample for frame in frames[start : start + STRIDE]]
        masks, carry = prune_block(block, grid, policy, carry)
        for mask, sample in zip(masks, block, strict=True):
            light = np.kron(mask.keep, np.ones((PATCH * MERGE, PATCH * MERGE)))[..., None]
            pictures.append((sample.pixels * (0.25 + 0.75 * light)).astype(np.uint8))
    return pictures


def main(clip: str, picture: str, *names: str) -> None:
    try:
        rows = [np.concatenate(dimmed(clip, name)[:10], 1) for name in names or ("default", "codecsight")]
    except (lookout.LookoutError, OSError) as error:
        sys.exit(f"error: {error}")
    Image.fromarray(np.concatenate(rows)).save(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
