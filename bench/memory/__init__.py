"""The memory bench; `__main__` says what it measures."""
