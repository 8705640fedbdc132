"""Generated from protos/lookout/v1 by `make protos`."""
