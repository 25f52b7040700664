-- Change the names that have the expected value.
-- KEYS[1]  the partition: a sorted set of members `name NUL value`, all of score 0
-- ARGV     least name, greatest name, shapes (one letter for each operation), then what each operation needs; no name twice:
--            c  create: name, value              expects that the name is absent
--            s  swap:   name, expected, value
--            r  remove: name, expected
--            a  absent: name                     expects that the name is absent, and changes nothing
-- Reply    one digit for each operation: 1 done, 0 not
-- The script reads first, then adds, then removes. So a failure (no memory, the key is moving to another node) stops it
-- before its first change, and the partition is never empty in between.
local partition, shapes = KEYS[1], ARGV[3]
-- New names mostly come in order, into an empty range. Then one check of the range replaces one check for each name.
local fresh = redis.call('ZLEXCOUNT', partition, '[' .. ARGV[1] .. '\0', '(' .. ARGV[2] .. '\1') == 0
local added, removed, won = {}, {}, {}
local growth, at = 0, 4
for i = 1, #shapes do
  local shape = string.sub(shapes, i, i)
  local name, ok, old, new = ARGV[at], false, nil, nil
  at = at + 1
  if shape == 'c' or shape == 'a' then
    ok = fresh or redis.call('ZLEXCOUNT', partition, '[' .. name .. '\0', '(' .. name .. '\1') == 0
  else
    old = name .. '\0' .. ARGV[at]
    at = at + 1
    ok = not fresh and redis.call('ZSCORE', partition, old) ~= false
  end
  if shape == 'c' or shape == 's' then
    new = name .. '\0' .. ARGV[at]
    at = at + 1
  end
  if ok and new ~= old then
    if new then
      added[#added + 1] = 0
      added[#added + 1] = new
      growth = growth + #new
    end
    if old then
      removed[#removed + 1] = old
      growth = growth - #old
    end
  end
  won[i] = ok and '1' or '0'
end
if #added > 0 then
  if growth <= 0 then
    -- This removes nothing. But after a removal a script may add even if memory is at its limit, so writes that free memory work.
    redis.call('ZREM', partition, '')
  end
  redis.call('ZADD', partition, unpack(added))
end
if #removed > 0 then
  redis.call('ZREM', partition, unpack(removed))
end
return table.concat(won)
