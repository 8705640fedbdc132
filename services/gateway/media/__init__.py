"""Pictures and clips from the segments that Kafka holds."""
