-- Divides what may be held at one time between gateways: each claims a part for a while. The clock is Redis's own.
-- KEYS     where the claims may stand: gateway (16 hexadecimal digits) -> claim, a blank, and when it ends in microseconds
-- ARGV     gateway, limit, used (what it holds already), want (the most that it can use), time to live in milliseconds
-- returns  the gateway's claim, the sum of the others', and which key it was (0: none)
local id, limit, used = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local want, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local all
local at = choose(function(key)
  if redis.call('HLEN', key) > 4096 then return false end
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if #name ~= 16 or not name:find('^%x+$') then return false end
  end
  local found = redis.call('HGETALL', key)
  for i = 2, #found, 2 do
    if not found[i]:find('^%d+ %d+$') then return false end
  end
  all = found
  return true
end)
if at == 0 then return {0, 0, 0} end
all = all or {}
local others = 0
for i = 1, #all, 2 do
  if all[i] ~= id then
    local claim, ends = string.match(all[i + 1], '^(%d+) (%d+)$')
    claim, ends = tonumber(claim), tonumber(ends)
    -- a claim that lives longer than any gateway makes it, or is more than a number can count, is nobody's
    if ends and ends > now and ends <= now + ttl * 2000 and claim < 9007199254740992 then
      others = others + claim
    else
      redis.call('HDEL', KEYS[at], all[i])
    end
  end
end
-- what is held is held, also where it was taken while Redis was away
local claim = math.max(used, math.min(want, limit - others))
if claim > 0 then
  redis.call('HSET', KEYS[at], id, string.format('%.0f %.0f', claim, now + ttl * 1000))
  redis.call('PEXPIRE', KEYS[at], ttl * 2)
else
  claim = 0
  redis.call('HDEL', KEYS[at], id)
end
return {claim, others, at}
