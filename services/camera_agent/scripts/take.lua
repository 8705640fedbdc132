-- Take or renew the lease of a camera.
-- KEYS: 1 the lease. ARGV: 1 the agent, 2 milliseconds. Returns 1 when the lease is the agent's now, else 0.
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then redis.call('DEL', KEYS[1]) end -- others may have written here
local holder = redis.call('GET', KEYS[1])
if not holder then
  return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') and 1 or 0
end
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
return 0
