"""Bytes to samples: segments, files, motion vectors, and the sandbox that decodes hostile bytes."""
