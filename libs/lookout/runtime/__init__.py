"""What every service shares: worker, network, tensor store, observation and tenants."""
