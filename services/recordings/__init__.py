"""Recordings as jobs: plans requests, runs parts, collects outcomes."""
