"""Masks that keep more where many move, beside simple ways to keep as many tokens."""
