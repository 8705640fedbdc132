"""`make test-alerts`: the fault of each Prometheus rule, and the rules on what services said meanwhile."""
