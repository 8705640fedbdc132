"""Tests a checkpoint: whether it runs as in transformers, and how well it answers questions on labelled
clips.

The commands are `lookout model check` and `lookout eval`.
"""
