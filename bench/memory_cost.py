"""What a camera-hour of memory costs in Redis, in a holder's index and in slabs: `make bench-memory_cost`.

Sizes only: the layouts are those of `lookout.past.memory.catalogue`, filled for the shapes of a 7B and a 32B.
A real Redis tells what it takes for one layer's scenes. No figure depends on the machine.
"""

from __future__ import annotations

import json

import redis
import torch

from lookout.local.redis import RedisServer
from lookout.past.memory import KVShape
from lookout.past.memory.catalogue import range_bytes, scenes_bytes

SHAPES = {
    # Qwen2.5-VL's config.json: layers, KV heads, head size; three position axes.
    "7B": KVShape(28, 4, 128, 3, torch.bfloat16),
    "32B": KVShape(64, 8, 128, 3, torch.bfloat16),
}
FPS, TOKENS_A_FRAME = 2, 98  # as pruned by default
FRAMES_A_SCENE = 16  # `MemorySettings.visual_frames`
TOKENS_A_CLUSTER = 81  # of the ten hours of `make bench-memory`: 2 349 600 tokens in 28 807 clusters
LOCATION_BYTES = 64  # ids, counts, frames, file, offset and checksum of one slab, as an index range has them


def redis_bytes(value: int) -> float:
    """What a real Redis takes for each byte of a field of a hash of that size."""
    server = RedisServer()
    server.start()
    try:
        client = redis.Redis.from_url(server.url)
        client.hset("lookout:{gate}:chapter:1", "0", bytes(value))
        return int(str(client.memory_usage("lookout:{gate}:chapter:1"))) / value
    finally:
        server.close()


def costs(shape: KVShape) -> dict[str, float]:
    """Bytes of a camera-hour."""
    frames = 3600 * FPS
    tokens = frames * TOKENS_A_FRAME
    scenes = frames // FRAMES_A_SCENE
    clusters = tokens // TOKENS_A_CLUSTER
    first = scenes_bytes(scenes, shape)
    index = sum(
        range_bytes(clusters // scenes, tokens // scenes, shape) for _ in range(scenes * shape.layers)
    )
    return {
        "slabs": tokens * shape.layers * shape.token_bytes,
        "index": index,
        "scenes": first * shape.layers,
        "slab_locations": clusters * LOCATION_BYTES * shape.layers,
        "semantic_keys_in_half": clusters * shape.width * 2 * shape.layers,
        "redis": first * shape.layers * redis_bytes(first),
    }


def main() -> None:
    """Print the table, then one line of JSON."""
    table = {name: costs(shape) for name, shape in SHAPES.items()}
    print(f"{'MB for each camera-hour':32}" + "".join(f"{name:>12}" for name in table))
    for what in next(iter(table.values())):
        print(f"{what:32}" + "".join(f"{cost[what] / 1e6:12.1f}" for cost in table.values()))
    print(json.dumps({name: {k: round(v) for k, v in cost.items()} for name, cost in table.items()}))


if __name__ == "__main__":
    main()
