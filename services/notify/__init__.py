"""Incidents in, messages to people and programs out."""
