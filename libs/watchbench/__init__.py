"""Rendered camera scenes with ground truth, a tiny vision-language model and its evaluation."""
