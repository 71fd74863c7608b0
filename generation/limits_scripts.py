"""What Redis runs for `limits_redis`: each script is one step that nothing comes between.

Times are microseconds since 1970. Where the caller gives none ('') it is the server's own, so that the clocks of heads
need not agree. When that is set back, what lies in its future is taken for what was written just now: limits hold, and
nothing is held for as long as the clock was ahead.
"""

from __future__ import annotations

_NOW = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
"""

#: Lets a request in, or counts only. KEYS: requests (by time), leases (by their end), tokens of the day.
#: ARGV: now, window, lease, young, requests per minute, concurrent generations, tokens per day (-1: no limit),
#: generations (0: look only), the request's id, then leases to end first.
#: Returns taken, now, requests, newest, leaving, running, tokens; -1 where there is none. Tokens are -1 too when they
#: are limited and not known, or were told longer ago than `young`: then nothing was taken.
ADMIT = (
    _NOW
    + """
local window, lease, young = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local per_minute, at_once, per_day = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local generations, id = tonumber(ARGV[8]), ARGV[9]

for n = 10, #ARGV do redis.call('ZREM', KEYS[2], ARGV[n]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
for n, latest in ipairs({now, now + lease}) do
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[n], string.format('(%.0f', latest), '+inf')) do
    redis.call('ZADD', KEYS[n], latest, member)
  end
end

local requests, newest, leaving = redis.call('ZCARD', KEYS[1]), -1, -1
if requests > 0 then newest = tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]) end
if per_minute >= 0 and requests >= per_minute then
  local place = requests - per_minute
  leaving = tonumber(redis.call('ZRANGE', KEYS[1], place, place, 'WITHSCORES')[2])
end

local running = 0
if at_once >= 0 then
  for _, held in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    running = running + tonumber(string.match(held, ':(%d+)$'))
  end
end

local tokens = 0
if per_day >= 0 then
  tokens = -1
  local told = redis.call('HMGET', KEYS[3], 'day', 'tokens', 'at')
  local age = told[3] and now - tonumber(told[3])
  if age and tonumber(told[1]) == math.floor(now / 86400000000) and age >= 0 and age < young then
    tokens = tonumber(told[2])
  end
end

local room = generations > 0
  and (per_day < 0 or (tokens >= 0 and tokens < per_day))
  and leaving < 0
  and (at_once < 0 or running + generations <= at_once)
if room and per_minute >= 0 then
  redis.call('ZADD', KEYS[1], now, id)
  redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000))
end
if room and at_once >= 0 then
  redis.call('ZADD', KEYS[2], now + lease, id)
  redis.call('PEXPIRE', KEYS[2], math.ceil(lease / 1000))
end
return {room and 1 or 0, now, requests, newest, leaving, running, tokens}
"""
)

#: KEYS: the leases of a key, once for each id in ARGV 3 and after. ARGV: now, lease. They last as long again from now,
#: also those that are not there any more: a Redis that lost everything has them back.
RENEW = (
    _NOW
    + """
for n, key in ipairs(KEYS) do
  redis.call('ZADD', key, now + tonumber(ARGV[2]), ARGV[n + 2])
  redis.call('PEXPIRE', key, math.ceil(tonumber(ARGV[2]) / 1000))
end
"""
)

#: KEYS: tokens of the day. ARGV: now, young, the day, and what the database says was used on it.
#: Several tell it at once, and of two the larger one was read later, since a day's use only grows. What was told
#: longer ago than `young` counts for nothing, and a day that has not begun here is not told: a head whose clock is
#: ahead would hide today from all.
TELL_TOKENS = (
    _NOW
    + """
local young, day, tokens = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local today = math.floor(now / 86400000000)
if day > today then return end
local told = redis.call('HMGET', KEYS[1], 'day', 'tokens', 'at')
local age = told[3] and now - tonumber(told[3])
if age and age >= 0 and age < young and tonumber(told[1]) <= today then
  if tonumber(told[1]) > day then return end
  if tonumber(told[1]) == day then tokens = math.max(tokens, tonumber(told[2])) end
end
redis.call('HSET', KEYS[1], 'day', day, 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(young / 1000))
"""
)
