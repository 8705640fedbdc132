"""The controller copies Camera, Watch and other resources into topics, and writes their statuses back. The
chart's jobs are here too.
"""
