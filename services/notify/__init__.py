"""Notifies people and programs of incidents."""
