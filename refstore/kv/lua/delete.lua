-- Remove the names that exist.
-- KEYS[1]  the partition: a sorted set of members `name NUL value`, all of score 0
-- ARGV     the names
-- Reply    nil
local removed = {}
for i = 1, #ARGV do
  removed[#removed + 1] = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', 'LIMIT', 0, 1)[1]
end
if #removed > 0 then
  redis.call('ZREM', KEYS[1], unpack(removed))
end
return false
