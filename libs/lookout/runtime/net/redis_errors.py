"""What Redis raises where it does not answer, alone or as a cluster."""

from __future__ import annotations

import redis
from redis.exceptions import RedisClusterException

REDIS_ERRORS = (redis.RedisError, RedisClusterException)
"""A cluster without a node that answers raises the second one, which is no RedisError."""
