-- Remove the names from first to last, at most a given number of them, so that the server is not blocked for long.
-- KEYS[1]  the partition: a sorted set of members `name NUL value`, all of score 0
-- ARGV     first name, last name, how many at most
-- Reply    1: there may be more; 0: none is left
local first, last = '[' .. ARGV[1] .. '\0', '(' .. ARGV[2] .. '\1'
local nth = redis.call('ZRANGEBYLEX', KEYS[1], first, last, 'LIMIT', tonumber(ARGV[3]) - 1, 1)[1]
if nth then
  redis.call('ZREMRANGEBYLEX', KEYS[1], first, '[' .. nth)
  return 1
end
redis.call('ZREMRANGEBYLEX', KEYS[1], first, last)
return 0
