-- Divides what may be held at one time between gateways: each claims a part for a while. The clock is Redis's own.
-- KEYS[1]  the claims: gateway -> claim, a blank, and when it ends in microseconds
-- ARGV     gateway, limit, used (what it holds already), want (the most that it can use), time to live in milliseconds
-- returns  the gateway's claim, and the sum of the others'
local id, limit, used = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local want, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' or kind == 'hash' and redis.call('HLEN', KEYS[1]) > 4096 then
  redis.call('DEL', KEYS[1]) -- somebody else's; nobody's limits would be shared any more
end
local all = redis.call('HGETALL', KEYS[1])
local others = 0
for i = 1, #all, 2 do
  if all[i] ~= id then
    local claim, ends = string.match(all[i + 1], '^(%d+) (%d+)$')
    claim, ends = tonumber(claim), tonumber(ends)
    -- a claim that lives longer than any gateway makes it, or is more than a number can count, is nobody's
    if ends and ends > now and ends <= now + ttl * 2000 and claim < 9007199254740992 then
      others = others + claim
    else
      redis.call('HDEL', KEYS[1], all[i])
    end
  end
end
-- what is held is held, also where it was taken while Redis was away
local claim = math.max(used, math.min(want, limit - others))
if claim > 0 then
  redis.call('HSET', KEYS[1], id, string.format('%.0f %.0f', claim, now + ttl * 1000))
  redis.call('PEXPIRE', KEYS[1], ttl * 2)
else
  claim = 0
  redis.call('HDEL', KEYS[1], id)
end
return {claim, others}
