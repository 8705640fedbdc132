"""The exceptions that redis-py raises if Redis or a Redis Cluster does not answer."""

from __future__ import annotations

import redis
from redis.exceptions import RedisClusterException

REDIS_ERRORS = (redis.RedisError, RedisClusterException)
"""The second one is raised for a cluster in which no node answers; it does not derive from RedisError."""
