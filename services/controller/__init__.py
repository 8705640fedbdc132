"""The controller: Camera and Watch resources into topics, their state back, and the chart's jobs."""
