"""Publish a video file as a camera's segments: python examples/publish.py 127.0.0.1:9092 gate-3 clip.mp4

Instead of the address you can give the client properties file whose path `lookout up` prints; it has the
password too.
"""

import sys
from pathlib import Path

from confluent_kafka import Producer

from lookout.video.segments import cut


def connection(place: str) -> dict[str, str]:
    file = Path(place)
    if not file.is_file():
        return {"bootstrap.servers": place}
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def main(kafka: str, camera: str, path: str) -> None:
    # Idempotence keeps a camera's segments in order if a request to Kafka has to be repeated.
    settings = {"enable.idempotence": True, "message.max.bytes": 17 << 20}
    producer = Producer({**connection(kafka), **settings})
    count = 0
    for segment in cut(path, target_s=4.0):  # at keyframes, without re-encoding
        producer.produce("camera.segments.v1", key=camera, value=segment.data)
        count += 1
    if producer.flush(30):
        sys.exit("Kafka did not accept all segments within 30 s")
    print(f"{count} segments of {camera} published")


if __name__ == "__main__":
    main(*sys.argv[1:4])
