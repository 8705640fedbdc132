-- A holder's line, unless a later epoch of the same pod wrote it.
local found = redis.call('TYPE', KEYS[1]).ok
if found ~= 'hash' and found ~= 'none' then redis.call('DEL', KEYS[1]) end -- others may have written here
local seen = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '')
if seen and seen > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
