"""The read model: the topics' content in searchable tables. If it is deleted, it is rebuilt from Kafka."""
