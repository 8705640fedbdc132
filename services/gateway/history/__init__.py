"""The read model: what the topics say, in tables that can be searched. Deleted, it comes back from Kafka."""
