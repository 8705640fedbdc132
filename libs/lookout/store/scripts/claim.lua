-- One lease for each pod. The same owner renews it; a later start supersedes an earlier one of the same name.
-- Epochs grow, across wipes too, because they never fall behind the server's clock.
-- Keys: lease, epoch, roster. Answers {epoch, 1 new / 0 renewed}, or {0, epoch of the pod that superseded this one}.
local pod, owner, address, started, epoch, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
redis.call('HSET', KEYS[3], pod, address)
local held = redis.call('GET', KEYS[1])
if held then
  local lease = cjson.decode(held)
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
local now = redis.call('TIME')
local clock = now[1] * 1000 + math.floor(now[2] / 1000)
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local new = math.max(clock, last + 1, epoch + 1)
redis.call('SET', KEYS[2], string.format('%.0f', new), 'PX', ARGV[7])
redis.call('SET', KEYS[1],
  cjson.encode({epoch = new, address = address, owner = owner, started = started}), 'PX', ttl)
return {new, 1}
