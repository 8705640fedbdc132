"""Read alerts: python examples/alerts.py 127.0.0.1:9092 [how many]

Instead of the address you can give the client properties file whose path `lookout up` prints; it has the
password too.
"""

import json
import sys
from pathlib import Path

from confluent_kafka import Consumer


def connection(place: str) -> dict[str, str]:
    file = Path(place)
    if not file.is_file():
        return {"bootstrap.servers": place}
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def main(kafka: str, count: int | None = None) -> None:
    settings = {"group.id": "example", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({**connection(kafka), **settings})
    consumer.subscribe(["alerts.v1"])
    seen = 0
    while count is None or seen < count:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        alert = json.loads(message.value())
        print(
            alert["end"],
            alert["kind"],
            alert["camera"],
            f"{alert['score']:.2f}",
            alert["question"],
            flush=True,
        )
        seen += 1
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
