-- Take a line back, only where it is still the one that was meant.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return redis.call('DEL', KEYS[1]) end -- others may have written here
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end
return 0
