"""Segments become frames records; their pixels stay in the tensor store."""
