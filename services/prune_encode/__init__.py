"""Frames records become stride blocks: keep masks as facts, embeddings in the tensor store."""
