"""The past of cameras: memory, chapters, replay, back-tests, verification and erasures."""
