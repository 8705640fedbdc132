"""Turns verdicts into incidents."""
