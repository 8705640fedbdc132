"""Lookout: vision-language models over live camera fleets, at a fraction of the usual compute."""
