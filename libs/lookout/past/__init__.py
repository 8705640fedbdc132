"""What happened before: memory, chapters, replay, back-tests, verification and erasures."""
