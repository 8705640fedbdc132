"""A whole fleet among failures: `python -m tests.fleet.faults`."""
