-- One lease for each pod. The same owner renews it; a later start supersedes an earlier one of the same name.
-- Epochs grow, across wipes too, because they never fall behind the server's clock.
-- Keys: lease, epoch, roster. Answers {epoch, 1 new / 0 renewed}, or {0, epoch of the pod that superseded this one}.
local pod, owner, address, started, epoch, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
-- Others may have written here: what is of another type, or no lease, or begins in the future, gives way.
for index, kind in ipairs({'string', 'string', 'hash'}) do
  local found = redis.call('TYPE', KEYS[index]).ok
  if found ~= kind and found ~= 'none' then
    redis.call('DEL', KEYS[index])
  end
end
local now = redis.call('TIME')
local clock = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('HSET', KEYS[3], pod, address)
local held = redis.call('GET', KEYS[1])
local read, lease = pcall(cjson.decode, held or '')
local whole = read and type(lease) == 'table' and type(lease.started) == 'number' and type(lease.epoch) == 'number'
if whole and lease.started * 1000 <= clock + tonumber(ARGV[7]) then
  if lease.owner == owner and lease.epoch == epoch then
    if lease.address == address then
      redis.call('PEXPIRE', KEYS[1], ttl)
    else -- signed with a new token
      lease.address = address
      redis.call('SET', KEYS[1], cjson.encode(lease), 'PX', ttl)
    end
    return {epoch, 0}
  end
  if lease.owner ~= owner and lease.started > started then
    return {0, lease.epoch}
  end
end
local last = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
if not (last >= 0 and last < clock + tonumber(ARGV[7])) then
  last = 0
end
local new = math.max(clock, last + 1, epoch + 1)
redis.call('SET', KEYS[2], string.format('%.0f', new), 'PX', ARGV[7])
redis.call('SET', KEYS[1],
  cjson.encode({epoch = new, address = address, owner = owner, started = started}), 'PX', ttl)
return {new, 1}
