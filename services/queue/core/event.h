#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "services/queue/core/types.h"

// What goes into the state machine (events) and what comes out (effects). A log keeps the sequence
// of events with their times and nothing else: applied again they lead to the same state and the
// same answers.
//
// Calls and answers have the fields of the requests and responses in
// proto/sluice/queue/v1/queue.proto, which explains them.
namespace sluice::queue {

// The worker that calls.
struct Caller {
  std::string worker;
  int64_t incarnation = 0;
};

struct SetJob {
  uint64_t revision = 0;
  Spec spec;
  Phase phase = Phase::kOpen;
  std::vector<Worker> workers;
};
struct SetJobAnswer {
  bool repeat = false;
  int64_t incarnation = 0;  // Of the queue.
  int64_t version = 0;
  bool restored = false;
  Ledger ledger;
};

struct Admit {
  Id16 request;
  uint32_t room = 0;
  std::optional<Row> own;  // A prompt from outside; `room` is for its group alone.
  absl::Duration wait = absl::Seconds(30);
};
struct Member {
  uint32_t member = 0;
  uint32_t attempt = 0;
  Lease lease;
  uint64_t prefix = 0;
};
struct Grant {
  GroupId group;
  int64_t step = 0;
  Row row;
  uint64_t seed = 0;
  uint32_t size = 0;
  std::vector<Member> members;
  absl::Duration overdue;  // Time left until the group is overdue.
};
struct AdmitAnswer {
  bool repeat = false;
  std::vector<Grant> grants;
  Phase phase = Phase::kOpen;
  std::optional<WaitEdge> edge;
};

struct Put {
  std::vector<Record> records;
};
struct Failed {
  uint32_t record = 0;
  absl::Status status;
  uint64_t watermark = 0;
};
struct PutAnswer {
  std::vector<Failed> failed;
  uint32_t repeats = 0;
};

// Outcome of one item of Seal or Drop.
struct Item {
  absl::Status status;
  uint64_t watermark = 0;
  bool repeat = false;
};
struct SealItem {
  TrajectoryRef ref;
  Id16 lease;
  uint64_t tokens = 0;
  uint32_t crc32c = 0;
  Finish finish = Finish::kNone;
  uint32_t turns = 0;
};
struct Seal {
  std::vector<SealItem> items;
};
struct DropItem {
  TrajectoryRef ref;
  Id16 lease;
  std::string reason;
};
struct Drop {
  std::vector<DropItem> items;
};
// The answer to Seal and to Drop.
struct ItemsAnswer {
  bool repeat = false;
  std::vector<Item> items;
};

struct Room {
  std::string pool;
  uint32_t count = 0;
};
struct LeaseTasks {
  Id16 request;
  std::vector<Room> rooms;
  uint32_t generation = 0;
  absl::Duration wait = absl::Seconds(30);
  // Generations by which the worker can still score, but to which no group is pinned any more.
  std::vector<uint32_t> earlier;
  std::map<std::string, std::string> rewards;  // Name and version of each, of `generation`.
};
struct TaskGrant {
  Id16 id;
  std::string name;
  TrajectoryRef owner;
  std::vector<TrajectoryRef> members;  // For a group's task: its sealed members.
  Row row;
  Lease lease;
  std::vector<std::string> wants;  // Fields that the worker has to Get, of each member.
  std::vector<Field> fields;       // Small inputs come with the grant.
  Finish finish = Finish::kNone;
  std::vector<Finish> finishes;  // Of `members`.
  uint32_t round = 0;
  uint32_t tries = 0;  // Left, this one included.
  absl::Duration deadline;
  uint32_t generation = 0;  // By which it is to be scored.
};
struct LeaseTasksAnswer {
  bool repeat = false;
  std::vector<TaskGrant> tasks;
  std::optional<WaitEdge> edge;
  std::vector<uint32_t> unused;  // Of `earlier`: no group has scores of it to come.
};

struct Renew {
  std::vector<Id16> leases;  // Empty: all the caller holds.
  std::vector<Loaded> loaded;
};
struct RenewAnswer {
  std::vector<Id16> lost;
  absl::Duration ttl;
};

struct Release {
  std::vector<Id16> leases;
  std::string worker;  // Controller: all this worker holds, up to `incarnation`.
  int64_t incarnation = 0;
  ReleaseReason reason = ReleaseReason::kDrain;
  absl::Duration not_before;
  std::string cause;  // What failed, for people.
};
struct ReleaseAnswer {
  bool repeat = false;
  uint32_t released = 0;
};

struct AcquireBatch {
  int64_t k = 0;
  uint32_t from = 0;
  bool stream = false;
  absl::Duration wait = absl::Seconds(30);
};
struct BatchMember {
  uint32_t member = 0, attempt = 0;
  uint64_t tokens = 0, trained = 0;
  uint32_t crc32c = 0;
  std::vector<TokenRun> masked;
  PolicyVersion oldest, newest;
  Finish finish = Finish::kNone;
  std::vector<Field> fields;  // Small ones.
};
struct BatchGroup {
  GroupId group;
  Row row;  // json only with rows_only.
  uint32_t size = 0;
  std::vector<double> pool;
  std::vector<BatchMember> members;
};
struct AcquireBatchAnswer {
  bool repeat = false;
  bool filled = false;  // False: `wait` ran out; only `edge` is set, which says why.
  int64_t k = 0;
  Lease lease;
  uint32_t from = 0;
  std::vector<BatchGroup> groups;
  bool closed = false;
  uint32_t size = 0;
  uint32_t crc32c = 0;
  std::optional<WaitEdge> edge;
};

struct Apply {
  int64_t k = 0;
  Id16 lease;
  uint32_t crc32c = 0;
  std::string skipped;
  bool want_cursor = false;
  std::optional<double> ess, kl;  // AdmissionWindow::Drift.
};
struct ApplyAnswer {
  bool repeat = false;
  int64_t version = 0;
  Ledger ledger;
  std::string cursor;
};

struct AdvanceVersion {
  uint32_t policy = 0;
  std::optional<PolicyVersion> expected;
  PolicyVersion next;
};
struct AdvanceVersionAnswer {
  bool repeat = false;
  PolicyVersion current;
};

struct Durable {
  int64_t version = 0;
  std::string checkpoint;
  std::string hash;
};
struct DurableAnswer {
  bool repeat = false;
};

struct Restore {
  std::string cursor;
  std::string checkpoint;
  RestoreMode mode = RestoreMode::kReplay;
};
struct RestoreAnswer {
  bool repeat = false;
  RestoreMode mode = RestoreMode::kReplay;
  int64_t version = 0, end = 0, fork = 0;
  std::vector<Loaded> published;
  Ledger ledger;
};

// How much of the daemon's memory the job may reserve, in bytes: its quota, or less while other
// jobs need theirs. Bytes that are reserved already stay reserved.
struct MemoryShare {
  uint64_t bytes = 0;
};

struct Retask {
  RetaskMode mode = RetaskMode::kRescore;
  std::string task;             // Empty: all.
  uint32_t generation = 0;      // RESCORE: only what this one scored; 0: all.
  std::vector<GroupId> groups;  // Empty: all.
};
struct RetaskAnswer {
  uint32_t count = 0;  // Groups or prompts moved.
};

// Time passed: deadlines, leases, stragglers.
struct Tick {};
// The client of the parked call Event::call is gone.
struct CallerGone {};

// The queue daemon came back and goes on with this job under a new incarnation: engines and parked
// calls are forgotten, leases run anew in full. At level metadata payload is lost: watermarks of
// running members fall to 0, and sealed members are dropped as lost.
struct Restarted {
  uint32_t incarnation = 0;
};
// Room on the disk of the log. Low: nothing new is admitted; full: nothing more is put either. The
// values are those of wal::Space.
enum class Space { kOk = 0, kLow = 1, kFull = 2 };
struct DiskSpace {
  Space space = Space::kOk;
};

// The log knows an input by its place in this list, so new ones go at its end.
using Input = std::variant<SetJob, Admit, Put, Seal, Drop, LeaseTasks, Renew, Release, AcquireBatch,
                           Apply, AdvanceVersion, Durable, Restore, Tick, CallerGone, MemoryShare,
                           Restarted, DiskSpace, Retask>;

struct Event {
  Instant now;
  uint64_t call = 0;  // Its answer has the same number; unique among unanswered calls.
  Caller caller;
  Input input;
};

using Reply =
    std::variant<absl::Status, SetJobAnswer, AdmitAnswer, PutAnswer, ItemsAnswer, LeaseTasksAnswer,
                 RenewAnswer, ReleaseAnswer, AcquireBatchAnswer, ApplyAnswer, AdvanceVersionAnswer,
                 DurableAnswer, RestoreAnswer, RetaskAnswer>;

// A hint that work on a member, or group, is in vain.
struct CancelHint {
  TrajectoryRef ref;
  std::string reason;
  std::string worker;  // Who holds it.
};

struct Alarm {
  std::string code;
  std::string message;
  bool is_news = false;  // It only tells something; nothing is wrong.
};

struct Effects {
  // Answers with the number of their call. Those of calls parked earlier are among them, too; a
  // call that parks now is answered in the effects of a later event.
  std::vector<std::pair<uint64_t, Reply>> answers;
  std::vector<CancelHint> cancel;
  std::vector<Alarm> alarms;
  bool watch = false;            // What Watch tells (WatchState) changed.
  std::vector<uint32_t> stored;  // Of a Put: the records that were new and are stored.
};

}  // namespace sluice::queue
