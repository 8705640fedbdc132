"""Verdicts in, incidents out."""
