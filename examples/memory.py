"""Watch a clip, then ask about what is no longer in the window: python examples/memory.py clip.mp4"""

import sys

import lookout


def main(path: str) -> None:
    with lookout.Pipeline(memory="2h") as pipeline:  # or a size, "500MB"; memory_dir= keeps it on disk
        for _ in pipeline.watch(path):
            pass
        for answer in pipeline.ask("Was a vehicle in view earlier?", since=2.0):
            print(f"p(yes) {answer.p_yes:.2f}, based on {answer.moments[:3]}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
