"""The services: each wires a library to the runtime."""
