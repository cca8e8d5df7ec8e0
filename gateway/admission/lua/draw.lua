-- Takes tokens out of a bucket that gateways share. The clock is Redis's own.
-- KEYS[1]  the bucket: t, its time in microseconds; n, the tokens that it had then
-- ARGV     rate (tokens per microsecond), burst, give (tokens that come back; negative: a debt), least (the fewest that are of
--          use), want (the most that are)
-- returns  the tokens granted, and those left: whole ones, negative for a debt
local rate, burst, give = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local least, want = tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then
  redis.call('DEL', KEYS[1]) -- somebody else's; nobody's limits would be shared any more
end
local kept = redis.call('HMGET', KEYS[1], 't', 'n')
local then_, tokens = tonumber(kept[1]), tonumber(kept[2])
-- what no gateway writes counts as nothing: a time ahead of the clock, a debt of more than a year, no number
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
redis.call('HSET', KEYS[1], 't', string.format('%.0f', now), 'n', string.format('%.6f', tokens))
-- a bucket that is full again need not be kept
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.min(math.ceil((burst - tokens) / rate / 1000) + 1000, 31622400000)))
return {granted, math.floor(tokens)}
