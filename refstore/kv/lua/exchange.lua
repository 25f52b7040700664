-- Set names to values and return their old values.
-- KEYS[1]  the partition: a sorted set of members `name NUL value`, all of score 0
-- ARGV     least name, greatest name, then name, value, name, value, ...; no name twice
-- Reply    for each name the member that was replaced, or nil
-- The script reads first, then adds, then removes. So a failure (no memory, the key is moving to another node) stops it
-- before its first change, and the partition is never empty in between.
local partition = KEYS[1]
-- New names mostly come in order, into an empty range. Then one check of the range replaces one check for each name.
local fresh = redis.call('ZLEXCOUNT', partition, '[' .. ARGV[1] .. '\0', '(' .. ARGV[2] .. '\1') == 0
local added, removed, replaced = {}, {}, {}
for i = 3, #ARGV, 2 do
  local name = ARGV[i]
  local member = name .. '\0' .. ARGV[i + 1]
  local old = false
  if not fresh then
    old = redis.call('ZRANGEBYLEX', partition, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1)[1] or false
    if old and old ~= member then
      removed[#removed + 1] = old
    end
  end
  replaced[#replaced + 1] = old
  added[i - 2] = 0
  added[i - 1] = member
end
redis.call('ZADD', partition, unpack(added))
if #removed > 0 then
  redis.call('ZREM', partition, unpack(removed))
end
return replaced
