-- Give a lease back, where it is still this owner's.
local read, lease = false, nil
if redis.call('TYPE', KEYS[1]).ok == 'string' then -- others may have written here
  read, lease = pcall(cjson.decode, redis.call('GET', KEYS[1]))
end
if read and type(lease) == 'table' and lease.owner == ARGV[2] then
  redis.call('DEL', KEYS[1])
  if redis.call('TYPE', KEYS[2]).ok == 'hash' then redis.call('HDEL', KEYS[2], ARGV[1]) end
end
return 1
