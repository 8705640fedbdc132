"""Pictures and clips out of the segments that Kafka holds."""
