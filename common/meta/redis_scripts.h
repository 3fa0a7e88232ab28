#pragma once

// The Lua scripts of the store on Redis. Redis runs each as a whole or, if it refuses it, not at
// all.
namespace sluice::meta {

// Every script gets the keys P:lease, P:state, P:values, P:rebuilt and P:changes, and as its first
// argument the lease of the caller.
//
// The last entry of P:changes is always that of the newest transaction. Where it was lost, or an
// older build has written without it, kTake and kInstall begin the stream anew with an entry that
// names no key, so whoever reads along reads everything again.

// Takes the lease, if no other process has it. Under a term in which nobody has led yet, the caller
// must have waited for whoever may still lead under an earlier one. This is looked at here, where
// the lease is, because a lease that was there a moment ago may have ended since.
// Arguments: lease, its time in ms, format, the master's term (empty without Sentinels), and
// `waited` if the caller has waited.
// Returns held HOLDER | format N | wait | taken REVISION.
constexpr char kTake[] = R"(
  local held = redis.call('GET', KEYS[1])
  if held and held ~= ARGV[1] then return {'held', held} end
  local state = redis.call('HMGET', KEYS[2], 'format', 'revision', 'term')
  if state[1] and state[1] ~= ARGV[3] then return {'format', state[1]} end
  if not held and ARGV[4] ~= '' and state[3] ~= ARGV[4] and ARGV[5] ~= 'waited' then
    return {'wait'}
  end
  local revision = state[2] or '0'
  local last = redis.call('XREVRANGE', KEYS[5], '+', '-', 'COUNT', 1)[1]
  if not last or string.match(last[1], '^%d+') ~= revision then
    redis.call('DEL', KEYS[5])
    redis.call('XADD', KEYS[5], revision .. '-1', 'writer', ARGV[1])
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  redis.call('HSET', KEYS[2], 'format', ARGV[3], 'by', ARGV[1])
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'term', ARGV[4]) end
  return {'taken', revision}
)";

// Renews the lease. If it has expired, it is taken again, unless another process has had it since.
// Where the revision is lower than the caller's, that Redis has lost data, and `by` may name one
// who had the lease before the caller. Then it does not count, unless that one led under the
// master's present term. A master of a new term often lacks data, and what its own leader has
// written there since must not be replaced by the memory of an earlier one. So `by` is set with
// `term`, for a copy may lack the caller's name too.
// Arguments: lease, its time in ms, the caller's revision, the master's term.
// Returns lost HOLDER | held REVISION.
constexpr char kRenew[] = R"(
  local held = redis.call('GET', KEYS[1])
  if held and held ~= ARGV[1] then return {'lost', held} end
  local state = redis.call('HMGET', KEYS[2], 'by', 'revision', 'term')
  local revision = state[2] or '0'
  local behind = tonumber(revision) < tonumber(ARGV[3])
  local led = ARGV[4] ~= '' and state[3] == ARGV[4]
  if not held and state[1] and state[1] ~= ARGV[1] and (led or not behind) then
    return {'lost', state[1]}
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  if ARGV[4] ~= '' and not led then
    redis.call('HSET', KEYS[2], 'term', ARGV[4], 'by', ARGV[1])
  end
  return {'held', revision}
)";

// Does one transaction. Arguments: lease, the revision before it, the revision after it, the
// `writer` of its entries in P:changes, then the kind, key and value of each op. Only the holder of
// the lease writes, and it uses no revision for two transactions, so a Redis that is at the
// revision after it has done it already. `by` names the writer of each revision in the append-only
// file of Redis, which is thereby a history of who led. An entry of P:changes has about 500 keys at
// most, because unpack() has a limit. A stream that cannot be written must not stop the store, so
// it is dropped then.
// Returns done | lease HOLDER | revision N.
constexpr char kWrite[] = R"(
  local held = redis.call('GET', KEYS[1])
  if held ~= ARGV[1] then return {'lease', held or ''} end
  local revision = redis.call('HGET', KEYS[2], 'revision') or '0'
  if revision == ARGV[3] then return {'done'} end
  if revision ~= ARGV[2] then return {'revision', revision} end
  local fields, part = {'writer', ARGV[4]}, 0
  local function note()
    part = part + 1
    local noted = redis.pcall('XADD', KEYS[5], 'MAXLEN', '~', '10000', ARGV[3] .. '-' .. part,
                              unpack(fields))
    if type(noted) == 'table' and noted.err then redis.call('DEL', KEYS[5]) end
    fields = {'writer', ARGV[4]}
  end
  for i = 5, #ARGV, 3 do
    if ARGV[i] == 'put' then
      redis.call('HSET', KEYS[3], ARGV[i + 1], ARGV[i + 2])
    else
      redis.call('HDEL', KEYS[3], ARGV[i + 1])
    end
    fields[#fields + 1] = 'key'
    fields[#fields + 1] = ARGV[i + 1]
    if #fields > 1000 then note() end
  end
  if #fields > 2 then note() end
  redis.call('HSET', KEYS[2], 'revision', ARGV[3], 'by', ARGV[1])
  return {'done'}
)";

// Puts what was written back to P:rebuilt in the place of what is there, if P:rebuilt has all of
// it.
// Arguments: lease, format, revision, how many keys were written back.
// Returns done | lease HOLDER | keys N.
constexpr char kInstall[] = R"(
  local held = redis.call('GET', KEYS[1])
  if held ~= ARGV[1] then return {'lease', held or ''} end
  local keys = redis.call('HLEN', KEYS[4])
  if keys ~= tonumber(ARGV[4]) then return {'keys', tostring(keys)} end
  redis.call('DEL', KEYS[3])
  if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('RENAME', KEYS[4], KEYS[3]) end
  redis.call('DEL', KEYS[5])
  redis.call('XADD', KEYS[5], ARGV[3] .. '-1', 'writer', ARGV[1])
  redis.call('HSET', KEYS[2], 'format', ARGV[2], 'revision', ARGV[3], 'by', ARGV[1])
  return {'done'}
)";

// Gives the lease back, if it is still this process's.
constexpr char kRelease[] = R"(
  if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
  return {'done'}
)";

}  // namespace sluice::meta
