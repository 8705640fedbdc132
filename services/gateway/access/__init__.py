"""Authentication and authorization: who is calling, and what a caller may see and do."""
