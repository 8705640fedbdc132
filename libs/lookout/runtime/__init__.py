"""The parts that every service shares: worker, network, tensor store, observability and tenants."""
