"""CodecSight's figures that a small model can carry, re-run: `make bench-codecsight`."""
