"""Tells people and programs of incidents."""
