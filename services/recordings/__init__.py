"""Jobs about recordings: plans requests, runs parts, and collects outcomes."""
