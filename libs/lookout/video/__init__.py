"""Turns bytes into samples: segments, recordings, motion vectors, and the sandbox that decodes untrusted
bytes.
"""
