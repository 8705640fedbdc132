-- Release a camera's lease if the agent still holds it.
-- KEYS: 1 the lease. ARGV: 1 the agent. Returns 1 if the lease was removed, else 0.
if redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
