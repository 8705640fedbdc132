"""Pictures and clips from the segments in Kafka."""
