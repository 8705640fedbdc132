"""The HTTP API: how people and their programs read and change a fleet."""
