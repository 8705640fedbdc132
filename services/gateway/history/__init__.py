"""The read model: the content of the topics in searchable tables. If deleted, it is built again from
Kafka."""
