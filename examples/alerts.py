"""Read alerts: python examples/alerts.py 127.0.0.1:9092 [how many]"""

import json
import sys

from confluent_kafka import Consumer


def main(bootstrap: str, count: int | None = None) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "example", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
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
