-- Takes tokens out of a bucket that gateways share. The clock is Redis's own.
-- KEYS     where the bucket may stand: t, its time in microseconds; n, the tokens that it had then
-- ARGV     rate (tokens per microsecond), burst, give (tokens that come back; negative: a debt), least (the fewest that are of
--          use), want (the most that are)
-- returns  the tokens granted, those left (whole ones, negative for a debt), and which key it was (0: none)
local rate, burst, give = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local least, want = tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local then_, tokens
local at = choose(function(key)
  if redis.call('HLEN', key) ~= 2 then return false end
  local kept = redis.call('HMGET', key, 't', 'n')
  if not (kept[1] and kept[2] and kept[1]:find('^%d+$') and kept[2]:find('^-?%d+%.%d%d%d%d%d%d$')) then return false end
  then_, tokens = tonumber(kept[1]), tonumber(kept[2])
  return true
end)
if at == 0 then return {0, 0, 0} end
-- what no gateway can mean counts as nothing: a time ahead of the clock, a debt of more than a year, more than a number
if then_ and tokens and then_ <= now + 3600000000 and tokens >= -31622400000000 * rate and tokens < math.huge then
  tokens = math.min(burst, tokens + math.max(0, now - then_) * rate)
else
  tokens = burst
end
tokens = math.min(burst, tokens + give)
local granted = 0
if want > 0 then
  if tokens >= least then
    granted = math.floor(math.min(want, tokens))
  elseif least > burst and tokens >= burst then
    granted = least -- more than the whole burst passes when the bucket is full
  end
end
tokens = tokens - granted
redis.call('HSET', KEYS[at], 't', string.format('%.0f', now), 'n', string.format('%.6f', tokens))
-- a bucket that is full again need not be kept
redis.call('PEXPIRE', KEYS[at], string.format('%.0f', math.min(math.ceil((burst - tokens) / rate / 1000) + 1000, 31622400000)))
return {granted, math.floor(tokens), at}
