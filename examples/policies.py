"""Draw what each pruning policy keeps over time: python examples/policies.py clip.mp4 policies.png

Each line shows, for one policy, the share of a window's visual tokens that reaches the language model.
"""

import sys

from PIL import Image, ImageDraw

import lookout
from lookout.pruning import POLICIES

WIDTH, HEIGHT, MARGIN = 1000, 320, 40
COLOURS = ("#2f6db3", "#d9822b", "#3f9c63")


def main(clip: str, picture: str) -> None:
    shares: dict[str, list[tuple[float, float]]] = {}
    for policy in POLICIES:
        with lookout.Pipeline(questions=["Is anyone lying on the ground?"], policy=policy) as pipeline:
            verdicts = list(pipeline.watch(clip))
        shares[policy] = [(verdict.time, verdict.tokens_kept / verdict.tokens_total) for verdict in verdicts]
    end = max(time for line in shares.values() for time, _ in line)
    canvas = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(canvas)

    def place(time: float, share: float) -> tuple[float, float]:
        return MARGIN + (WIDTH - 2 * MARGIN) * time / end, HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)

    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        draw.line([place(0, level), place(end, level)], fill="#cccccc")
        draw.text((8, place(0, level)[1] - 6), f"{level:.0%}", fill="black")
    for number, ((policy, line), colour) in enumerate(zip(shares.items(), COLOURS, strict=False)):
        # Later lines are narrower, so that no line hides another.
        draw.line([place(*point) for point in line], fill=colour, width=3 * (len(shares) - number))
        draw.text((MARGIN + 140 * number, 12), policy, fill=colour)
    canvas.save(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
