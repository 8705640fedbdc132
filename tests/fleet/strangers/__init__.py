"""Strangers at every door of a playing fleet: `python -m tests.fleet.strangers`."""
