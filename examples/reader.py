"""Read frames of a recording: python examples/reader.py clip.mp4"""

import sys

import lookout


def main(path: str) -> None:
    with lookout.VideoReader(path) as reader:  # a path, an http(s) URL, bytes, or a file object
        print(len(reader), "frames at", reader.fps, "per second,", reader.duration, "s")
        print(reader[0].shape, reader[0:20:10].shape)  # uint8 RGB: one frame, and an array of frames
        print(reader.read(times_s=[0, 1.5], size=(112, 112)).pixels.shape)  # the frames at these times
        for frame in reader.sample(fps=1, start_us=2_000_000, size=(112, 112)):  # in order, decoded ahead
            print(frame.time_us, frame.pixels.shape)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
