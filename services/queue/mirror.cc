#include "services/queue/mirror.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/log/log.h"

namespace sluice::queue {
namespace {
constexpr size_t kEntriesPerPass = 128;      // Of one stream.
constexpr uint64_t kBytesPerPass = 1 << 20;  // Of all streams.
constexpr uint64_t kEntryBytes = 1024;       // About the size of an entry without its batch.
}  // namespace

std::string LedgerMirror::Id::str() const { return absl::StrCat(incarnation, "-", event); }

std::string LedgerMirror::KeyOf(const std::string& job) {
  return absl::StrCat("sluice:{", job, "}:ledger");
}

LedgerMirror::LedgerMirror(Options options)
    : options_(std::move(options)),
      redis_(options_.redis, options_.timeout),
      thread_([this] { Loop(); }) {}

LedgerMirror::~LedgerMirror() { Stop(); }

// The queue's side. -------------------------------------------------------------------------------

void LedgerMirror::AddEntry(const std::string& job, uint64_t incarnation,
                            std::shared_ptr<const LedgerEntry> entry) {
  Waiting noted{.id = {incarnation, entry->ledger.event},
                .entry = entry,
                .bytes = kEntryBytes + entry->batch.size()};
  MutexLock lock(&mu_);
  const auto [it, fresh] = streams_.try_emplace(job);
  Stream& stream = it->second;
  if (fresh) noted.gap = "start";
  if (noted.id <= stream.newest.id) return;
  stream.newest = noted;
  stream.waiting.push_back(noted);
  stream.bytes += noted.bytes;
  if (stream.bytes > options_.buffer_bytes) GiveUpWaiting(job, stream);
  if (connected_) changed_.NotifyAll();
}

void LedgerMirror::OnJobFreed(const std::string& job) {
  MutexLock lock(&mu_);
  const auto it = streams_.find(job);
  if (it == streams_.end()) return;
  it->second.freed = true;
  changed_.NotifyAll();
}

LedgerMirror::State LedgerMirror::state() const {
  MutexLock lock(&mu_);
  State state{.connected = connected_, .dropped = dropped_};
  for (const auto& [job, stream] : streams_) state.lag += stream.waiting.size();
  return state;
}

void LedgerMirror::Stop() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
    const Instant end = Clock::Real()->Monotonic() + options_.linger;
    for (Instant now = Clock::Real()->Monotonic(); !over_ && now < end;
         now = Clock::Real()->Monotonic())
      changed_.WaitFor(&mu_, end - now);
  }
  redis_.Break();
  if (thread_.joinable()) thread_.join();
}

// The thread. -------------------------------------------------------------------------------------

bool LedgerMirror::HasWork() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& it) {
    const Stream& stream = it.second;
    return stream.refused.empty() && (!stream.waiting.empty() || stream.freed);
  });
}

bool LedgerMirror::AwaitWork(bool up, Instant due) {
  MutexLock lock(&mu_);
  while (true) {
    if (stop_ && !(up && HasWork())) return false;
    const Instant now = Clock::Real()->Monotonic();
    if (now >= due || (up && HasWork())) return true;
    changed_.WaitFor(&mu_, due - now);
  }
}

void LedgerMirror::Loop() {
  bool up = false;
  Instant due;  // When to compare next, or to try to connect.
  while (AwaitWork(up, due)) {
    absl::Status status;
    const bool compare = !up || Clock::Real()->Monotonic() >= due;
    if (!up) status = redis_.Connect();
    if (status.ok() && compare) status = CompareStreams();
    if (status.ok()) status = SendEntries();
    up = status.ok();
    if (compare || !up) due = Clock::Real()->Monotonic() + (up ? options_.check : options_.retry);
    SetConnected(status);
  }
  MutexLock lock(&mu_);
  connected_ = false;
  over_ = true;
  changed_.NotifyAll();
}

// Logs one line when the connection changes, instead of one per try.
void LedgerMirror::SetConnected(const absl::Status& status) {
  MutexLock lock(&mu_);
  connected_ = status.ok();
  if (status.code() == logged_ || stop_) return;
  logged_ = status.code();
  if (status.ok()) {
    log::Info("mirror_connected", {{"redis", options_.redis.str()}});
  } else {
    log::Warning("mirror_disconnected",
                 {{"redis", options_.redis.str()},
                  {"why", status.message()},
                  {"next", "the mirror tries again each second; training goes on"}});
  }
}

// Gives up all waiting entries except the newest and those that may be under way to Redis.
void LedgerMirror::GiveUpWaiting(const std::string& job, Stream& stream) {
  auto first = stream.waiting.begin();
  while (first->id <= stream.sent) ++first;  // Ends, because the newest entry was not sent yet.
  const auto newest = std::prev(stream.waiting.end());
  if (first == newest) return;
  uint64_t missed = newest - first;
  dropped_ += missed;
  // An overflow is logged once, when it begins: after that the first entry has a gap.
  if (first->gap == nullptr)
    log::Warning("mirror_overflow",
                 {{"job", job}, {"waiting_bytes", stream.bytes}, {"entries", missed}});
  for (auto it = first; it != newest; ++it) missed += it->missed, stream.bytes -= it->bytes;
  newest->gap = "overflow";
  newest->missed = missed;
  stream.waiting.erase(first, newest);
}

// Redis has lost all entries after `top`. The next entry, or if none waits the newest one again, is
// sent with a gap; it has the whole ledger.
void LedgerMirror::MarkLost(const std::string& job, Stream& stream, const Id& top) {
  log::Warning("mirror_lost",
               {{"job", job}, {"written", stream.written.str()}, {"held", top.str()}});
  stream.written = stream.sent = top;
  if (stream.waiting.empty()) {
    stream.waiting.push_back(stream.newest);
    stream.bytes = stream.newest.bytes;
  }
  if (stream.waiting.front().gap == nullptr) stream.waiting.front().gap = "lost";
}

void LedgerMirror::SetRefused(const std::string& job, Stream& stream, const std::string& why) {
  if (stream.refused.empty() && !why.empty())
    log::Warning("mirror_refused", {{"job", job}, {"key", KeyOf(job)}, {"why", why}});
  if (!stream.refused.empty() && why.empty())
    log::Info("mirror_taken_again", {{"job", job}, {"key", KeyOf(job)}});
  stream.refused = why;
}

// Notes that Redis has all entries up to `id`.
void LedgerMirror::MarkWritten(Stream& stream, const Id& id) {
  SLUICE_CHECK(id <= stream.sent && stream.sent <= stream.newest.id);
  stream.written = id;
  while (!stream.waiting.empty() && stream.waiting.front().id <= id) {
    stream.bytes -= stream.waiting.front().bytes;
    stream.waiting.pop_front();
  }
}

// Compares what Redis has of each stream with what it should have.
absl::Status LedgerMirror::CompareStreams() {
  std::vector<std::string> jobs;
  std::vector<redis::Command> commands;
  {
    MutexLock lock(&mu_);
    for (const auto& [job, stream] : streams_) {
      jobs.push_back(job);
      commands.push_back({"XREVRANGE", KeyOf(job), "+", "-", "COUNT", "1"});
    }
  }
  if (commands.empty()) commands.push_back({"PING"});
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> replies, redis_.Run(commands));
  MutexLock lock(&mu_);
  // at() finds each stream, because only this thread removes streams.
  for (size_t i = 0; i < jobs.size(); ++i) CompareStream(jobs[i], streams_.at(jobs[i]), replies[i]);
  return absl::OkStatus();
}

void LedgerMirror::CompareStream(const std::string& job, Stream& stream,
                                 const redis::Reply& reply) {
  if (reply.kind == redis::Reply::Kind::kError) return SetRefused(job, stream, reply.text);
  Id top;
  if (!reply.list.empty()) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(reply.list[0].list.at(0).text, absl::MaxSplits('-', 1));
    if (!absl::SimpleAtoi(parts.first, &top.incarnation) ||
        !absl::SimpleAtoi(parts.second, &top.event))
      return SetRefused(job, stream, "an entry has an id that cannot be read");
  }
  const bool ours = stream.sent != Id{};  // This run has sent entries.

  if (top > stream.sent && (ours || top >= stream.newest.id)) {
    return SetRefused(
        job, stream,
        absl::StrCat("the stream holds entry ", top.str(),
                     ", which is beyond this queue's entries; if no other queue writes the stream, "
                     "delete it"));
  }

  SetRefused(job, stream, "");
  // A new run has sent nothing yet, so there is nothing to compare.
  if (!ours) return;
  if (top < stream.written) MarkLost(job, stream, top);
  if (top > stream.written) MarkWritten(stream, top);  // An answer of Redis was lost.
}

std::vector<LedgerMirror::Plan> LedgerMirror::GatherPlans() {
  std::vector<Plan> plans;
  uint64_t bytes = 0;
  for (auto& [job, stream] : streams_) {
    if (!stream.refused.empty() || bytes >= kBytesPerPass) continue;
    Plan plan{.job = job, .written = stream.written};
    for (const Waiting& waiting : stream.waiting) {
      if (plan.entries.size() == kEntriesPerPass || bytes >= kBytesPerPass) break;
      plan.entries.push_back(waiting);
      bytes += waiting.bytes;
    }
    plan.last = stream.freed && plan.entries.size() == stream.waiting.size();
    if (plan.entries.empty() && !plan.last) continue;
    if (!plan.entries.empty()) stream.sent = std::max(stream.sent, plan.entries.back().id);
    plans.push_back(std::move(plan));
  }
  return plans;
}

redis::Command LedgerMirror::EntryOf(const Plan& plan, size_t place) const {
  const Waiting& waiting = plan.entries[place];
  const LedgerEntry& entry = *waiting.entry;
  redis::Command command = {"XADD", KeyOf(plan.job)};
  // If the stream is gone, Redis must not begin it again as if nothing were missing.
  if (waiting.gap == nullptr) command.push_back("NOMKSTREAM");
  for (const auto& word :
       {std::string("MAXLEN"), std::string("~"), absl::StrCat(options_.entries), waiting.id.str()})
    command.push_back(word);
  const auto add = [&](const std::string& name, const std::string& value) {
    command.push_back(name);
    command.push_back(value);
  };

  add("kind", NameOf(entry.kind));
  if (waiting.gap != nullptr) {
    add("gap", waiting.gap);
    add("missed", absl::StrCat(waiting.missed));
  } else {
    add("prev", place == 0 ? plan.written.str() : plan.entries[place - 1].id.str());
  }

  const Ledger& ledger = entry.ledger;
  add("version", absl::StrCat(entry.version));
  const std::pair<const char*, int64_t> counters[] = {{"accepted", ledger.accepted},
                                                      {"durable", ledger.durable},
                                                      {"applied", ledger.applied},
                                                      {"live", ledger.live},
                                                      {"dropped", ledger.dropped_total()},
                                                      {"tokens_generated", ledger.tokens_generated},
                                                      {"tokens_trained", ledger.tokens_trained},
                                                      {"tokens_masked", ledger.tokens_masked},
                                                      {"durable_version", ledger.durable_version}};
  for (const auto& [name, value] : counters) add(name, absl::StrCat(value));
  for (const auto& [reason, count] : ledger.dropped) {
    if (count != 0) add(absl::StrCat("dropped.", reason), absl::StrCat(count));
  }

  add("hash", ToHex(ledger.hash));
  if (entry.kind == LedgerEntry::Kind::kApplied) add("batch", entry.batch);
  return command;
}

absl::Status LedgerMirror::SendEntries() {
  std::vector<Plan> plans;
  {
    MutexLock lock(&mu_);
    plans = GatherPlans();
  }

  std::vector<redis::Command> commands;
  for (const Plan& plan : plans) {
    for (size_t i = 0; i < plan.entries.size(); ++i) commands.push_back(EntryOf(plan, i));
    if (plan.last)
      commands.push_back(
          {"PEXPIRE", KeyOf(plan.job), absl::StrCat(absl::ToInt64Milliseconds(options_.keep))});
  }
  if (commands.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<redis::Reply> replies, redis_.Run(commands));
  MutexLock lock(&mu_);
  const redis::Reply* next = replies.data();
  for (const Plan& plan : plans) {
    HandleReplies(plan, next);
    next += plan.entries.size() + (plan.last ? 1 : 0);
  }
  return absl::OkStatus();
}

void LedgerMirror::HandleReplies(const Plan& plan, const redis::Reply* replies) {
  Stream& stream = streams_.at(plan.job);
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    if (replies[i].kind == redis::Reply::Kind::kError)
      return SetRefused(plan.job, stream, replies[i].text);
    if (replies[i].kind == redis::Reply::Kind::kNil) return MarkLost(plan.job, stream, {});
    MarkWritten(stream, plan.entries[i].id);
  }
  if (plan.last && stream.waiting.empty()) streams_.erase(plan.job);
}

}  // namespace sluice::queue
