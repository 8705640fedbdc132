"""The controller copies Camera, Watch and other resources into topics and writes their status back. Also the
chart's jobs.
"""
