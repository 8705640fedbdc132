"""Who calls, and what a caller may see and do."""
