"""Draw p(yes) over a recording: python examples/timeline.py clip.mp4 "Is a person in view?" timeline.png

The curve shows each window's p(yes) at the window's end; the strip below shows evenly spaced frames.
"""

import sys

import numpy as np
from PIL import Image, ImageDraw

import lookout

WIDTH, HEIGHT, FRAME, MARGIN = 1200, 200, 80, 10


def main(clip: str, question: str, picture: str) -> None:
    with lookout.Pipeline(questions=[question]) as pipeline:
        verdicts = list(pipeline.watch(clip))
    reader = lookout.VideoReader(clip)
    canvas = Image.new("RGB", (WIDTH, HEIGHT + FRAME), "white")
    draw = ImageDraw.Draw(canvas)

    def place(time: float, p_yes: float) -> tuple[float, float]:
        return WIDTH * time / reader.duration, MARGIN + (1 - p_yes) * (HEIGHT - 2 * MARGIN)

    draw.line([place(0, 0.5), place(reader.duration, 0.5)], fill="#cccccc")
    draw.line([place(verdict.time, verdict.p_yes) for verdict in verdicts], fill="#2f6db3", width=3)
    draw.text((MARGIN, MARGIN), question, fill="black")
    times = np.linspace(0, reader.duration, WIDTH // FRAME, endpoint=False)
    for column, frame in enumerate(reader.read(times_s=times.tolist(), size=(FRAME, FRAME)).pixels):
        canvas.paste(Image.fromarray(frame), (column * FRAME, HEIGHT))
    canvas.save(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
