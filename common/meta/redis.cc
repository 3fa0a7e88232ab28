#include "common/meta/redis.h"

#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/base/loopback.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/meta/redis_check.h"
#include "common/meta/redis_copy.h"
#include "common/meta/redis_scripts.h"
#include "common/redis/sentinel.h"

namespace sluice::meta {
namespace {

constexpr char kRedisFormat[] = "1";
constexpr char kPasswordVariable[] = "SLUICE_STORE_PASSWORD";
// Of one exchange with Redis, or with one Sentinel.
constexpr absl::Duration kCallTimeout = absl::Seconds(1);
constexpr absl::Duration kLoadTimeout = absl::Seconds(30);
constexpr size_t kMaxPrefix = 64;
constexpr size_t kBytesPerCall = 1 << 20;  // About how many are written back in one exchange.

// The part of a lease that people read.
std::string HolderOf(const std::string& lease) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(lease, absl::MaxSplits(' ', 1));
  return parts.second;
}

absl::Status HeldError(const std::string& where, const std::string& holder) {
  return ErrorWith(absl::StatusCode::kUnavailable, {.reason = "HELD", .current = holder},
                   absl::StrCat("the store in Redis at ", where, " is held by ", holder));
}

absl::Status LeaseLostError(const std::string& holder) {
  return ErrorWith(absl::StatusCode::kAborted,
                   {.reason = "LEASE_LOST",
                    .catalogue = "SLUICE-META-0011",
                    .hint = "start this process again; it then waits until the other one ends",
                    .current = holder},
                   absl::StrCat("the lease of the store has gone to ", holder));
}

// The answer of a script: a word, and what follows it.
struct Verdict {
  std::string word;
  std::string rest;
};

absl::StatusOr<Verdict> VerdictOf(const redis::Reply& reply) {
  using Kind = redis::Reply::Kind;
  if (reply.kind == Kind::kError && absl::StartsWith(reply.text, "OOM")) {
    return ErrorWith(
        absl::StatusCode::kResourceExhausted,
        {"STORE_FULL", "SLUICE-META-0012", "raise `maxmemory` of that Redis", absl::Seconds(1)},
        absl::StrCat("Redis is full: ", reply.text));
  }
  if (reply.kind == Kind::kError) return AwayError(absl::StrCat("Redis says: ", reply.text));
  if (reply.kind != Kind::kList || reply.list.empty())
    return AwayError("the answer of Redis to a script is not a list");
  return Verdict{reply.list[0].text, reply.list.size() > 1 ? reply.list[1].text : ""};
}

bool IsZero(const redis::Reply& reply) {
  return reply.kind == redis::Reply::Kind::kNumber && reply.number == 0;
}

// A password is needed wherever others could reach the Redis.
absl::Status CheckPassword(const redis::Endpoint& endpoint, absl::string_view what) {
  if (!endpoint.password.empty() || IsLoopback(endpoint.host)) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "NO_PASSWORD",
                    .catalogue = "SLUICE-AUTH-0022",
                    .hint = absl::StrCat("set `requirepass` in the Redis that keeps the store, and "
                                         "give the password by file or in ",
                                         kPasswordVariable)},
                   absl::StrCat(what, " is not on loopback, and no password is given"));
}

absl::Status CheckPasswordOfRedis(const redis::Endpoint& endpoint) {
  return CheckPassword(endpoint, absl::StrCat("the store in Redis at ", endpoint.str()));
}

// Connects to the master and checks that it keeps what it has answered.
absl::Status ConnectAndCheck(redis::MasterConnection& redis) {
  SLUICE_RETURN_IF_ERROR(redis.Connect());
  absl::Status status = CheckPasswordOfRedis(redis.master().endpoint);
  if (status.ok()) status = CheckRedis(redis, redis.master().endpoint.str());
  if (!status.ok()) redis.Close();
  return status;
}

class RedisStore : public Store {
 public:
  RedisStore(const redis::MasterSource& source, const Target& target)
      : source_(source),
        times_(target.lease),
        prefix_(target.prefix),
        token_(absl::StrCat(ToHex(RandomId16()), " ", target.holder)),
        redis_(source_, kCallTimeout),
        lease_redis_(source_, kCallTimeout),
        lease_(target.lease) {}

  ~RedisStore() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
    // The next process need not wait for the lease's end. If this fails, it waits.
    if (taken_ && lease_redis_.Connect().ok()) (void)Eval(lease_redis_, kRelease, {});
  }

  // `copy`: as OpenRedis().
  absl::Status Init(RedisCopy* copy) {
    // A standby comes here once a second. If the Redis of that time is gone without a word, the
    // standby must not name the leader of that time for as long as a load may take.
    redis::MasterConnection redis(source_, kCallTimeout);
    SLUICE_RETURN_IF_ERROR(ConnectAndCheck(redis));
    SLUICE_RETURN_IF_ERROR(redis.CheckAllAreListed());
    SLUICE_RETURN_IF_ERROR(AwaitClaim(redis));
    bool waited = false;
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(const bool taken, Take(redis, waited));
      if (taken) break;
      SLUICE_ASSIGN_OR_RETURN(waited, AwaitEarlierLeader(redis));
    }
    // It is renewed from now on, because to load may take longer than it lasts.
    thread_ = std::thread([this] { RenewLease(); });
    redis::MasterConnection loads(source_, kLoadTimeout);
    SLUICE_RETURN_IF_ERROR(loads.Connect());
    const redis::Master &now = loads.master(), &then = redis.master();
    if (now.endpoint.str() != then.endpoint.str() || now.term != then.term) {
      return AwayError(absl::StrCat("the master has changed from ", then.endpoint.str(), " to ",
                                    now.endpoint.str(), " since the lease was taken"));
    }
    RedisCopy none(prefix_);
    return Load(loads, copy != nullptr ? *copy : none);
  }

  absl::StatusOr<Entry> Get(absl::string_view key) override {
    MutexLock lock(&mu_);
    const auto it = entries_.find(key);
    if (it != entries_.end()) return EntryOf(it->first, it->second);
    return absl::NotFoundError(absl::StrCat("no key ", key, " in the job store"));
  }

  absl::StatusOr<std::vector<Entry>> List(absl::string_view prefix, absl::string_view after,
                                          int limit) override {
    MutexLock lock(&mu_);
    auto it = after < prefix ? entries_.lower_bound(prefix) : entries_.upper_bound(after);
    std::vector<Entry> entries;
    for (; it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
      entries.push_back(EntryOf(it->first, it->second));
      if (limit > 0 && entries.size() == static_cast<size_t>(limit)) break;
    }
    return entries;
  }

  absl::StatusOr<int64_t> Txn(std::vector<Compare> compares, std::vector<Op> ops) override {
    for (const Op& op : ops) SLUICE_RETURN_IF_ERROR(internal::CheckSizes(op));
    MutexLock call(&call_mu_);

    // A transaction whose outcome is unknown is done first. It may be this one.
    if (pending_) {
      const bool repeat = pending_->compares == compares && pending_->ops == ops;
      const absl::StatusOr<int64_t> done = WritePending();
      if (!done.ok() || repeat) return done;
    }

    SLUICE_RETURN_IF_ERROR(CheckMayAct());
    for (const Compare& compare : compares) {
      const int64_t current = CurrentRevision(compare.key);
      if (current != compare.revision) return internal::LostRaceError(compare, current);
    }
    if (ops.empty()) return revision();
    pending_ = Pending{std::move(compares), std::move(ops), ++transactions_};
    return WritePending();
  }

  absl::Status CheckMayAct() override {
    MutexLock lock(&mu_);
    if (lease_.lost()) return LeaseLostError(lost_to_);
    if (lease_.MayAct(Clock::Real()->Monotonic())) return absl::OkStatus();
    return AwayError(absl::StrCat("the lease of the store could not be renewed in time: ",
                                  renew_error_.empty() ? "no answer yet" : renew_error_));
  }

  int64_t times_rebuilt() const override {
    MutexLock lock(&mu_);
    return times_rebuilt_;
  }

 private:
  struct Pending {
    std::vector<Compare> compares;
    std::vector<Op> ops;
    int64_t number = 0;  // Counts the transactions of this process.
  };

  static Entry EntryOf(const std::string& key, const Stored& stored) {
    return {key, stored.value, stored.revision};
  }

  std::string Key(absl::string_view part) const { return absl::StrCat(prefix_, ":", part); }

  int64_t revision() const {
    MutexLock lock(&mu_);
    return revision_;
  }

  size_t CountEntries() const {
    MutexLock lock(&mu_);
    return entries_.size();
  }

  int64_t CurrentRevision(const std::string& key) const {
    MutexLock lock(&mu_);
    const auto it = entries_.find(key);
    return it == entries_.end() ? 0 : it->second.revision;
  }

  // Opening. --------------------------------------------------------------------------------------

  // An empty Redis may have been flushed under a process that has the data in memory and claims it
  // with its next renewal. With Sentinels the wait is AwaitEarlierLeader(), which is longer.
  absl::Status AwaitClaim(redis::MasterConnection& redis) {
    if (!redis.master().term.empty()) return absl::OkStatus();
    const redis::Command ask = {"EXISTS", Key("state"), Key("lease")};
    SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run({&ask, 1}));
    if (IsZero(said[0])) Clock::Real()->Sleep(times_.renew + times_.poll);
    return absl::OkStatus();
  }

  // Waits under a term in which nobody has led yet. One who led under an earlier term may act for
  // almost `ttl`, and one that has the data in memory is to come first. Returns false, early, if
  // somebody claims the lease meanwhile; Take() tells who.
  absl::StatusOr<bool> AwaitEarlierLeader(redis::MasterConnection& redis) {
    log::Info("store_waits", {{"redis", redis.master().endpoint.str()},
                              {"for", "a leader of an earlier term of the Sentinels"}});
    const redis::Command ask = {"EXISTS", Key("lease")};
    const absl::Duration until =
        Clock::Real()->Monotonic() + times_.ttl + times_.renew + times_.poll;
    while (Clock::Real()->Monotonic() < until) {
      Clock::Real()->Sleep(times_.poll);
      SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run({&ask, 1}));
      if (!IsZero(said[0])) return false;
    }
    SLUICE_RETURN_IF_ERROR(redis.CheckIsMaster());
    return true;
  }

  // Returns false if it must be waited for an earlier leader. `waited`: it was.
  absl::StatusOr<bool> Take(redis::MasterConnection& redis, bool waited) {
    const absl::Duration sent = Clock::Real()->Monotonic();
    const std::string where = redis.master().endpoint.str(), term = redis.master().term;
    SLUICE_ASSIGN_OR_RETURN(
        const Verdict verdict,
        Eval(redis, kTake, {LeaseTime(), kRedisFormat, term, waited ? "waited" : ""}));
    if (verdict.word == "wait") return false;
    if (verdict.word == "held") return HeldError(where, HolderOf(verdict.rest));
    if (verdict.word == "format") {
      return ErrorWith(absl::StatusCode::kFailedPrecondition,
                       {"STORE", "SLUICE-META-0006", "run the build that wrote it, or a newer one"},
                       absl::StrCat("the store in Redis at ", where, " has format ", verdict.rest,
                                    "; this build reads format ", kRedisFormat));
    }
    {
      MutexLock lock(&mu_);
      taken_ = true;
    }
    SLUICE_RETURN_IF_ERROR(redis.CheckIsMaster());

    MutexLock lock(&mu_);
    revision_ = RevisionOf(verdict.rest);
    lease_.OnGranted(sent, term);
    return true;
  }

  // Brings `copy` to what Redis has, and takes it.
  absl::Status Load(redis::MasterConnection& redis, RedisCopy& copy) {
    const absl::Duration began = Clock::Real()->Monotonic();
    const int64_t copied = copy.revision();
    SLUICE_RETURN_IF_ERROR(copy.Update(redis, [] { return false; }));
    MutexLock lock(&mu_);
    // Only the holder of the lease writes.
    if (copy.revision() != revision_) {
      return AwayError(absl::StrCat("the store has gone from revision ", revision_, " to ",
                                    copy.revision(), " since the lease was taken"));
    }
    const int64_t read = copy.values_read();
    entries_ = copy.Take();
    for (const auto& [key, stored] : entries_) {
      if (stored.revision <= revision_) continue;
      return ErrorWith(
          absl::StatusCode::kDataLoss,
          {"STORE_DAMAGED", "SLUICE-META-0003", "put the data of that Redis back from a copy"},
          absl::StrCat("Redis at ", redis.master().endpoint.str(), ", ", Key("values"), ", key ",
                       key, ": its revision ", stored.revision, " is above that of the store, ",
                       revision_));
    }
    log::Info("store_loaded",
              {{"keys", entries_.size()},
               {"revision", revision_},
               {"copied_before_up_to_revision", copied},
               {"keys_read_now", read},
               {"seconds", absl::ToDoubleSeconds(Clock::Real()->Monotonic() - began)}});
    return absl::OkStatus();
  }

  // Writing. --------------------------------------------------------------------------------------

  std::string LeaseTime() const { return absl::StrCat(absl::ToInt64Milliseconds(times_.ttl)); }

  // Runs a script with the lease as its first argument. After a refusal the connection is closed,
  // because what a Redis refuses today (it is loading, or has become a replica) may work over the
  // next connection, or at the next master.
  absl::StatusOr<Verdict> Eval(redis::MasterConnection& redis, const char* script,
                               std::vector<std::string> args) {
    std::vector<redis::Command> commands = {{"EVAL", script, "5", Key("lease"), Key("state"),
                                             Key("values"), Key("rebuilt"), Key("changes"),
                                             token_}};
    for (std::string& arg : args) commands[0].push_back(std::move(arg));
    const absl::StatusOr<std::vector<redis::Reply>> replies = redis.Run(commands);
    if (!replies.ok()) return AwayError(replies.status().message());
    absl::StatusOr<Verdict> verdict = VerdictOf((*replies)[0]);
    if (absl::IsUnavailable(verdict.status())) redis.Close();
    return verdict;
  }

  // Connects to the master if there is no connection, and takes the lease along to it.
  absl::Status Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_) {
    // The thread that renews the lease may have gone on to a new master.
    if (redis_.connected() && redis_.master().term != term()) redis_.Close();
    if (redis_.connected()) return absl::OkStatus();
    if (absl::Status status = ConnectAndCheck(redis_); !status.ok())
      return AwayError(status.message());
    return redis_.master().term == term() ? absl::OkStatus() : RenewOnce(redis_).status();
  }

  // Connects if there is no connection, and runs the script.
  absl::StatusOr<Verdict> CallScript(const char* script, std::vector<std::string> args)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_) {
    SLUICE_RETURN_IF_ERROR(Connect());
    return Eval(redis_, script, std::move(args));
  }

  // Does the pending transaction. It stays pending if its outcome is unknown.
  absl::StatusOr<int64_t> WritePending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_) {
    // Each turn but the last removes an obstacle: an expired lease, or lost data.
    for (int turn = 0; turn < 3; ++turn) {
      SLUICE_RETURN_IF_ERROR(CheckMayAct());
      const int64_t before = revision(), after = before + 1;
      std::vector<std::string> args = {absl::StrCat(before), absl::StrCat(after),
                                       absl::StrCat(token_, " ", pending_->number)};
      for (const Op& op : pending_->ops) {
        args.push_back(op.value ? "put" : "delete");
        args.push_back(op.key);
        args.push_back(op.value ? absl::StrCat(after, " ", *op.value) : "");
      }

      const absl::StatusOr<Verdict> verdict = CallScript(kWrite, std::move(args));
      if (!verdict.ok()) {
        if (absl::IsResourceExhausted(verdict.status())) pending_.reset();
        return verdict.status();
      }
      if (verdict->word == "done") return ApplyPending(after);
      if (verdict->word == "lease" && !verdict->rest.empty())
        return LoseLease(HolderOf(verdict->rest));
      if (verdict->word == "lease") {
        SLUICE_RETURN_IF_ERROR(RenewOnce(redis_).status());
      } else if (RevisionOf(verdict->rest) < before) {
        SLUICE_RETURN_IF_ERROR(WriteBack(verdict->rest));
      } else {
        return LoseLease(
            absl::StrCat("another process, which has written revision ", verdict->rest));
      }
    }
    return AwayError("Redis loses the store again and again");
  }

  int64_t ApplyPending(int64_t after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_) {
    MutexLock lock(&mu_);
    SLUICE_CHECK(after == revision_ + 1);
    revision_ = after;
    for (Op& op : pending_->ops) {
      if (op.value) entries_[op.key] = {*std::move(op.value), after};
      else entries_.erase(op.key);
    }
    pending_.reset();
    return after;
  }

  // Writes all of memory to Redis, beside what is there, and then puts it in its place at once.
  absl::Status WriteBack(const std::string& theirs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_) {
    const std::string where = redis_.master().endpoint.str();
    log::Error("store_lost_data", {{"redis", where},
                                   {"its_revision", theirs},
                                   {"our_revision", revision()},
                                   {"next", "everything is written back from memory"}});
    // The copy is of one revision, because only Txn() changes memory, and it holds call_mu_ too.
    // All pieces go over one connection, hence to one Redis.
    std::vector<redis::Command> commands = {{"DEL", Key("rebuilt")}};
    std::string next;
    do {
      next = AddEntries(next, &commands);
      const absl::StatusOr<std::vector<redis::Reply>> replies = redis_.Run(commands);
      if (!replies.ok()) return AwayError(replies.status().message());
      for (const redis::Reply& reply : *replies) {
        if (reply.kind == redis::Reply::Kind::kError) return VerdictOf(reply).status();
      }
      commands.clear();
      // To write a large store takes longer than the lease lasts, and the thread that renews it may
      // be this one.
      if (IsRenewalDue()) SLUICE_RETURN_IF_ERROR(RenewOnce(redis_).status());
    } while (!next.empty());

    SLUICE_ASSIGN_OR_RETURN(const Verdict verdict, Eval(redis_, kInstall,
                                                        {kRedisFormat, absl::StrCat(revision()),
                                                         absl::StrCat(CountEntries())}));
    if (verdict.word == "keys")
      return AwayError(absl::StrCat("Redis has kept ", verdict.rest, " of ", CountEntries(),
                                    " keys that were written back"));
    if (verdict.word != "done") return AwayError("the lease ended while data was written back");
    log::Warning("store_rebuilt", {{"redis", where}, {"revision", revision()}});
    MutexLock lock(&mu_);
    ++times_rebuilt_;
    return absl::OkStatus();
  }

  // Adds commands that write the entries from key `first` on, up to about kBytesPerCall. Returns
  // the key to go on with; empty: all are written.
  std::string AddEntries(const std::string& first, std::vector<redis::Command>* commands) {
    MutexLock lock(&mu_);
    size_t bytes = 0;
    for (auto it = entries_.lower_bound(first); it != entries_.end(); ++it) {
      if (bytes >= kBytesPerCall) return it->first;
      bytes += it->first.size() + it->second.value.size();
      commands->push_back({"HSET", Key("rebuilt"), it->first,
                           absl::StrCat(it->second.revision, " ", it->second.value)});
    }
    return "";
  }

  // The lease. ------------------------------------------------------------------------------------

  void RenewLease() {
    while (AwaitRenewal()) {
      const int64_t ours = revision();
      const absl::Status connection =
          lease_redis_.connected() ? absl::OkStatus() : ConnectAndCheck(lease_redis_);
      const absl::StatusOr<int64_t> theirs =
          connection.ok() ? RenewOnce(lease_redis_) : NoteNoAnswer(connection);
      if (theirs.ok() && *theirs < ours) RepairIfBehind();
    }
  }

  // Waits until the lease is to be renewed. False: it never is again.
  bool AwaitRenewal() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (!stopping_ && !lease_.lost()) {
      const absl::Duration left = lease_.next() - Clock::Real()->Monotonic();
      if (left <= absl::ZeroDuration()) return true;
      changed_.WaitFor(&mu_, left);
    }
    return false;
  }

  bool IsRenewalDue() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return lease_.next() <= Clock::Real()->Monotonic();
  }

  // Renews the lease over `redis`. Returns the revision that Redis is at.
  absl::StatusOr<int64_t> RenewOnce(redis::MasterConnection& redis) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Duration sent = Clock::Real()->Monotonic();
    const std::string term = redis.master().term;
    if (!MayAsk(term, sent)) {
      return NoteNoAnswer(AwayError(absl::StrCat(
          "Redis at ", redis.master().endpoint.str(),
          " has become the master after this process's lease had ended; another one may still "
          "lead under the old master, so its lease is waited for")));
    }
    const absl::StatusOr<Verdict> verdict =
        Eval(redis, kRenew, {LeaseTime(), absl::StrCat(revision()), term});
    if (!verdict.ok()) return NoteNoAnswer(verdict.status());
    if (verdict->word == "lost") return LoseLease(HolderOf(verdict->rest));
    if (absl::Status status = redis.CheckIsMaster(); !status.ok()) return NoteNoAnswer(status);

    MutexLock lock(&mu_);
    if (term != lease_.term()) {
      log::Warning("store_failed_over",
                   {{"redis", redis.master().endpoint.str()}, {"from", lease_.term()}});
    }
    lease_.OnGranted(sent, term);
    renew_error_.clear();
    return RevisionOf(verdict->rest);
  }

  bool MayAsk(const std::string& term, absl::Duration now) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return lease_.MayAsk(term, now);
  }

  std::string term() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return lease_.term();
  }

  absl::Status NoteNoAnswer(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    lease_.OnNoAnswer(Clock::Real()->Monotonic());
    renew_error_ = std::string(why.message());
    return AwayError(why.message());
  }

  absl::Status LoseLease(const std::string& holder) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    lease_.OnLost();
    lost_to_ = holder;
    return LeaseLostError(holder);
  }

  // Writes everything back if Redis has lost data, so that a store in which nothing changes is
  // complete too. A failure does not matter: the next renewal finds the same.
  void RepairIfBehind() ABSL_LOCKS_EXCLUDED(call_mu_) {
    MutexLock call(&call_mu_);
    if (!Connect().ok()) return;
    // Asked again under call_mu_, where no transaction changes either revision.
    const absl::StatusOr<int64_t> theirs = RenewOnce(redis_);
    if (theirs.ok() && *theirs < revision()) (void)WriteBack(absl::StrCat(*theirs));
  }

  const redis::MasterSource source_;
  const LeaseTimes times_;
  const std::string prefix_;
  const std::string token_;  // The value of P:lease while this process has it.

  // Held during a transaction, so that Redis and memory change in the same order.
  Mutex call_mu_;
  redis::MasterConnection redis_ ABSL_GUARDED_BY(call_mu_);
  // A transaction that Redis may or may not have done.
  std::optional<Pending> pending_ ABSL_GUARDED_BY(call_mu_);
  int64_t transactions_ ABSL_GUARDED_BY(call_mu_) = 0;

  redis::MasterConnection lease_redis_;  // Used by the lease's thread alone while it runs.

  mutable Mutex mu_ ABSL_ACQUIRED_AFTER(call_mu_);  // Never held while Redis is asked.
  CondVar changed_;
  // All that Redis has at `revision_`. Changed under call_mu_ too.
  Content entries_ ABSL_GUARDED_BY(mu_);
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
  Lease lease_ ABSL_GUARDED_BY(mu_);
  bool taken_ ABSL_GUARDED_BY(mu_) = false;       // The lease was taken when it was opened.
  std::string lost_to_ ABSL_GUARDED_BY(mu_);      // Who has the lease, if it is lost.
  std::string renew_error_ ABSL_GUARDED_BY(mu_);  // Why the last renewal failed.
  int64_t times_rebuilt_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

absl::Status CheckPrefix(const std::string& prefix) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
  if (!prefix.empty() && prefix.size() <= kMaxPrefix &&
      prefix.find_first_not_of(kAllowed) == std::string::npos)
    return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_PREFIX",
               absl::StrCat("the prefix \"", prefix, "\" of the store's keys; wanted: 1 to ",
                            kMaxPrefix, " of a-z, A-Z, 0-9, '.', '_', ':' and '-'"));
}

// What the flags of the store say of its Redis.
absl::StatusOr<redis::MasterSource> SourceOf(const Target& target) {
  SLUICE_RETURN_IF_ERROR(CheckPrefix(target.prefix));
  SLUICE_ASSIGN_OR_RETURN(redis::MasterSource source,
                          redis::MakeMasterSource({.url = target.url,
                                                   .password_file = target.password_file,
                                                   .password_variable = kPasswordVariable,
                                                   .ca_file = target.ca_file}));
  if (source.sentinels.empty()) SLUICE_RETURN_IF_ERROR(CheckPasswordOfRedis(source.redis));
  for (const redis::Endpoint& sentinel : source.sentinels) {
    SLUICE_RETURN_IF_ERROR(
        CheckPassword(sentinel, absl::StrCat("the Sentinel at ", sentinel.address())));
  }
  return source;
}

}  // namespace

RedisFollower::RedisFollower(const redis::MasterSource& source, const std::string& prefix)
    : redis_(std::make_unique<redis::MasterConnection>(source, kCallTimeout)), copy_(prefix) {}

RedisFollower::~RedisFollower() = default;

absl::StatusOr<std::unique_ptr<RedisFollower>> RedisFollower::Make(const Target& target) {
  SLUICE_ASSIGN_OR_RETURN(const redis::MasterSource source, SourceOf(target));
  return absl::WrapUnique(new RedisFollower(source, target.prefix));
}

absl::Status RedisFollower::Follow(const std::function<bool()>& cancelled) {
  if (!redis_->connected()) SLUICE_RETURN_IF_ERROR(redis_->Connect());
  return copy_.Update(*redis_, cancelled);
}

absl::StatusOr<std::unique_ptr<Store>> OpenRedis(const Target& target, RedisCopy* copy) {
  SLUICE_ASSIGN_OR_RETURN(const redis::MasterSource source, SourceOf(target));
  auto store = std::make_unique<RedisStore>(source, target);
  SLUICE_RETURN_IF_ERROR(store->Init(copy));
  return store;
}

absl::StatusOr<std::string> DescribeRedis(const Target& target) {
  SLUICE_ASSIGN_OR_RETURN(const redis::MasterSource source, SourceOf(target));
  redis::MasterConnection redis(source, kCallTimeout);
  SLUICE_RETURN_IF_ERROR(ConnectAndCheck(redis));
  SLUICE_RETURN_IF_ERROR(redis.CheckAllAreListed());
  const redis::Command ask = {"GET", absl::StrCat(target.prefix, ":lease")};
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> said, redis.Run({&ask, 1}));
  const std::string holder = HolderOf(said[0].text);
  return absl::StrCat("Redis at ", redis.master().endpoint.str(), " keeps what it is told; ",
                      holder.empty() ? "nobody" : holder, " leads");
}

}  // namespace sluice::meta
