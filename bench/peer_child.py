"""One decode of one recording by one library, in a process of its own: `bench.peers` starts it.

Standard library and the measured library only, so that another interpreter can run it. Reads a job as JSON
from the first argument; writes one line of JSON: elapsed and CPU seconds, peak memory, frames."""

from __future__ import annotations

import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Job = dict[str, Any]


def lookout(job: Job) -> int:
    """This project."""
    from lookout.video.files import VideoReader

    with VideoReader(job["path"]) as reader:
        found = reader.read(times_us=job["times_us"], size=tuple(job["size"]), threads=job["threads"])
    return len(found)


def lookout_grid(job: Job) -> int:
    """This project on its own grid, which prefers I-frames near a grid point."""
    from lookout.video.files import VideoReader

    step = job["times_us"][1] - job["times_us"][0]
    with VideoReader(job["path"]) as reader:
        return len(reader.read(1e6 / step, size=tuple(job["size"]), threads=job["threads"]))


def floor(job: Job) -> int:
    """Decoding just the frames that any exact reader must decode, on one thread; nothing is converted."""
    from lookout.video.files import FileDecoder  # noqa: F401  (imports outside the clock)
    from lookout.video.files.parallel import FILE_LIMITS
    from lookout.video.files.reader import VideoReader
    from lookout.video.files.source import open_video
    from lookout.video.files.table import plan_ranges
    from lookout.video.segments.skipping import decode_wanted

    with VideoReader(job["path"]) as reader:
        ranges = plan_ranges(reader.table, [p.pts for p in reader.picks(times_us=job["times_us"])])
        needed = [range(run.first, run.last + 1) for run in ranges]
        with open_video(reader.source, FILE_LIMITS) as video:
            packets = dict(enumerate(video.packets()))
            begin, frames = clock(), 0
            for run, numbers in zip(ranges, needed, strict=True):
                found = decode_wanted(video, [packets[number] for number in numbers], run.wanted)
                frames += sum(len(each) for each in found) + len(video.decode(None))
                video.context.flush_buffers()
            job["clock"] = [b - a for a, b in zip(begin, clock(), strict=True)]
    return frames


def torchcodec(job: Job) -> int:
    """torchcodec: `mode` exact, approximate or mappings; `decoders` that share the threads and the times."""
    import torch
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    torch.set_num_threads(1)
    size, count = tuple(job["size"]), job["decoders"]
    times = [t / 1e6 for t in job["times_us"]]
    per = -(-len(times) // count)
    later = job["resize"] == "torchvision"

    def part(number: int) -> int:
        how: Job = {"seek_mode": job["mode"]} if job["mode"] != "mappings" else {}
        if job["mode"] == "mappings":
            how["custom_frame_mappings"] = job["mappings"]
        decoder = VideoDecoder(
            job["path"],
            num_ffmpeg_threads=max(1, job["threads"] // count),
            transforms=None if later else [Resize(size)],
            **how,
        )
        frames = decoder.get_frames_played_at(times[number * per : (number + 1) * per]).data
        if later:
            from torchvision.transforms.v2.functional import resize

            frames = resize(frames, list(size), antialias=True)
        return int(frames.shape[0])

    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(part, range(count)))


def decord(job: Job) -> int:
    """decord: `mode` batch (one call) or `decoders` readers that share the threads and the times."""
    from decord import VideoReader

    height, width = job["size"]
    count = job["decoders"]

    def part(number: int) -> int:
        reader = VideoReader(
            job["path"], width=width, height=height, num_threads=max(1, job["threads"] // count)
        )
        rate = reader.get_avg_fps()
        indices = [min(len(reader) - 1, int(t / 1e6 * rate + 0.5)) for t in job["times_us"]]
        per = -(-len(indices) // count)
        return int(reader.get_batch(indices[number * per : (number + 1) * per]).asnumpy().shape[0])

    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(part, range(count)))


def warm(job: Job) -> None:
    """Import what the job needs, outside the clock."""
    if job["library"] == "torchcodec":
        import torchcodec.decoders
        import torchcodec.transforms  # noqa: F401

        if job["resize"] == "torchvision":
            import torchvision.transforms.v2.functional  # noqa: F401
    elif job["library"] == "decord":
        import decord  # noqa: F401
    else:
        import lookout.video.files.reader  # noqa: F401


def clock() -> tuple[float, float]:
    """Elapsed and CPU seconds."""
    return time.perf_counter(), time.process_time()


def peak_mib() -> float:
    """The process's largest memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Do the job."""
    job: Job = json.loads(sys.argv[1])
    warm(job)
    libraries = {
        "lookout": lookout,
        "lookout grid": lookout_grid,
        "floor": floor,
        "torchcodec": torchcodec,
        "decord": decord,
    }
    before, begin = peak_mib(), clock()
    frames = libraries[job["library"]](job)
    spent = [b - a for a, b in zip(begin, clock(), strict=True)]
    elapsed, cpu = job.get("clock") or spent
    print(
        json.dumps({"frames": frames, "elapsed": elapsed, "cpu": cpu, "mib": max(0.0, peak_mib() - before)})
    )


if __name__ == "__main__":
    main()
