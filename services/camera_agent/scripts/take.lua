-- Take or renew a camera's lease.
-- KEYS: 1 the lease. ARGV: 1 the agent, 2 the lease time in milliseconds.
-- Returns 1 if the agent now holds the lease, else 0.
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then redis.call('DEL', KEYS[1]) end -- not written by an agent
local holder = redis.call('GET', KEYS[1])
if not holder then
  return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') and 1 or 0
end
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
return 0
