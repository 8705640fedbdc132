-- Give a lease back, where it is still this owner's.
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held).owner == ARGV[2] then
  redis.call('DEL', KEYS[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return 1
