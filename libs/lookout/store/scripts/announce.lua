-- A holder's line, unless a later epoch of the same pod wrote it.
local seen = redis.call('HGET', KEYS[1], ARGV[1])
if seen and tonumber(seen) > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
