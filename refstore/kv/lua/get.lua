-- Look up names in a partition.
-- KEYS[1]  the partition: a sorted set of members `name NUL value`, all of score 0
-- ARGV     least name, greatest name, then the names
-- Reply    for each name its member, or nil
local partition = KEYS[1]
local found = {}
if redis.call('ZLEXCOUNT', partition, '[' .. ARGV[1] .. '\0', '(' .. ARGV[2] .. '\1') == 0 then
  for i = 1, #ARGV - 2 do
    found[i] = false
  end
  return found
end
for i = 3, #ARGV do
  local name = ARGV[i]
  found[i - 2] = redis.call('ZRANGEBYLEX', partition, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1)[1] or false
end
return found
