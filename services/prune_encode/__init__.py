"""Turns frames records into stride blocks: keep masks in the records, embeddings in the tensor store."""
