"""Authentication and authorization: who calls, and what a caller may see and do."""
