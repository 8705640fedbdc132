"""A checkpoint under test: whether it runs as in transformers, and how well it answers labelled clips.

`lookout model check` and `lookout eval` are the commands over this room.
"""
