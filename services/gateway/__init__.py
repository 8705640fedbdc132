"""The HTTP API: what people and their programs read and write of a fleet."""
