-- Write what is known of a camera; it goes when it is not written again.
-- KEYS: 1 the report. ARGV: 1 milliseconds, then names and values in turn.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end -- others may have written here
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
