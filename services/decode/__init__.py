"""Decodes segments into frames records; their pixels go to the tensor store."""
