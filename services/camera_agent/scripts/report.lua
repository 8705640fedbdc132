-- Write a camera's report; it expires unless it is written again.
-- KEYS: 1 the report. ARGV: 1 its lifetime in milliseconds, then alternating names and values.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end -- not written by an agent
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
