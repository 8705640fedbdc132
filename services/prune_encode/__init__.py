"""Turns frames records into stride blocks, with keep masks in the records and embeddings in the tensor
store.
"""
