"""The controller: writes Camera, Watch and other resources into topics and their state back; the chart's
jobs."""
