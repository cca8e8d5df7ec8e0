-- Chooses the key of a limit. Values that no gateway writes are left alone, so each limit has several keys; all gateways come
-- to the same one, since the values under them decide.
-- ours     says that a gateway can have written the hash under a key
-- returns  which of KEYS: the first with a value of a gateway (also when a foreign value before it is gone: what counts stands
--          here), else the first with none; 0: foreign values stand under all
local function choose(ours)
  local empty = 0
  for i, key in ipairs(KEYS) do
    local kind = redis.call('TYPE', key).ok
    if kind == 'hash' and ours(key) then return i end
    if kind == 'none' and empty == 0 then empty = i end
  end
  return empty
end
