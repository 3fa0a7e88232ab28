#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/rl/version.h"
#include "services/queue/core/field_list.h"

// The queue's nouns, as plain structs. They mirror the wire contracts but share nothing with
// generated code.
namespace sluice::queue {

// Monotonic time since some fixed moment. The core never reads a clock: time comes with each event.
using Instant = absl::Duration;

// A group's name: the queue's incarnation in the high bits, an ordinal (0, 1, .. per job) in the
// low 64.
struct GroupId {
  uint32_t incarnation = 0;
  uint64_t ordinal = 0;

  auto operator<=>(const GroupId&) const = default;
  // Big-endian: u32 incarnation, u16 shard (0), u16 zero, u64 ordinal.
  Id16 id() const;
  static GroupId From(const Id16& id);
  std::string hex() const { return id().hex(); }
  std::string brief() const;  // For people: incarnation and ordinal in hex, as in "1:2f".
};

// A member of a group, or (without member) the whole group. Attempts count from 1.
struct TrajectoryRef {
  GroupId group;
  std::optional<uint32_t> member;
  uint32_t attempt = 0;

  std::string str() const;  // group/member/attempt, for people.
};

// Immutable bytes that several holders share. They are freed with the last holder. After a restart
// at level metadata bytes may be lost: they have a size and a CRC, but no data.
struct Bytes {
  std::shared_ptr<const char> data;
  uint64_t size = 0;
  uint32_t crc32c = 0;

  absl::string_view view() const { return {data.get(), data == nullptr ? 0 : size}; }
  bool lost() const { return data == nullptr && size > 0; }
  // Compares size and CRC alone if the bytes of either are lost.
  bool operator==(const Bytes& other) const {
    if (size != other.size || crc32c != other.crc32c) return false;
    return lost() || other.lost() || view() == other.view();
  }
  static Bytes Copy(absl::string_view text);
};

// Place of a prompt in the job's data; occurrence counts its re-issues.
struct RowRef {
  static constexpr uint32_t kOutside = ~0u;

  uint32_t source = 0;  // Index in Spec::sources; kOutside: the prompt came with Admit.
  uint32_t epoch = 0;
  uint64_t index = 0;
  uint32_t occurrence = 0;

  auto operator<=>(const RowRef&) const = default;
};

struct Row {
  RowRef ref;
  std::string source;  // Name.
  std::string json;    // Its mapped fields (SourceSpec::fields), with sorted keys.
};

struct Sampling {
  double temperature = 1, top_p = 0, min_p = 0;
  uint32_t top_k = 0, max_tokens = 0, min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_ids;
  bool ignore_eos = false;

  bool operator==(const Sampling&) const = default;
};

// Values of the enums below are those of the wire, except for WorkerRole, and for Statistic,
// Straggler and Durability, which are words there.
enum class Phase { kOpen = 1, kHold = 2, kClosed = 3, kFreed = 4 };
enum class Statistic { kMasked = 1, kStrict = 2 };
enum class Straggler { kWait = 1, kDrop = 2, kMask = 3, kShrink = 4 };
enum class Durability { kMemory = 1, kMetadata = 2, kFull = 3 };
enum class Sampler { kUniform = 1, kLevels = 2, kAdaptive = 3 };
enum class Filter { kNone = 1, kSignal = 2 };
enum class Granularity { kTrajectory = 1, kGroup = 2 };
enum class SegmentRole { kPrompt = 1, kSampled = 2, kForced = 3, kObservation = 4, kBridge = 5 };
enum class Finish { kNone = 0, kStop = 1, kLength = 2, kEnvEnd = 3, kTruncated = 4 };
enum class Dtype { kNone = 0, kI32 = 10, kF32 = 12, kF64 = 13 };  // Others pass through unread.
enum class ReleaseReason { kDrain = 1, kMigrate = 2, kFault = 3, kLost = 4 };
enum class RestoreMode { kReplay = 1, kRequeue = 2 };
enum class RetaskMode { kRescore = 1, kReadmit = 2 };
enum class WorkerRole { kNone = 0, kController, kRollout, kReward, kTrainer };

struct SourceSpec {
  std::string name;
  std::string path;
  double weight = 1;
  std::map<std::string, std::string> fields;  // Name in the row -> name in the file.

  bool operator==(const SourceSpec&) const = default;
};

struct TaskSpec {
  std::string name;
  std::vector<std::string> needs;     // Fields that must be there before it is ready.
  std::vector<std::string> produces;  // Fields it writes, all at once.
  Granularity granularity = Granularity::kTrajectory;
  std::string pool;
  absl::Duration deadline = absl::Seconds(10);  // Of one try.
  uint32_t tries = 3;

  bool operator==(const TaskSpec&) const = default;
};

// What the queue needs to know of a job. Names are those of the job file.
struct Spec {
  uint64_t seed = 0;
  bool deterministic = false;
  std::vector<std::string> policies = {"policy"};
  uint32_t groups_per_step = 1;  // B
  uint32_t group_size = 1;       // G
  uint32_t group_min = 1;        // G_min
  // Members of a group that are drawn first. The others are drawn once these are scored, if their
  // rewards differ. 0: all at once.
  uint32_t first_wave = 0;
  uint32_t max_staleness = 0;                   // eta, versions
  std::optional<uint32_t> admission_staleness;  // eta_adm. Unset: it moves by itself, from eta on.
  std::optional<double> min_ess, max_kl;        // AdmissionWindow::DriftBounds.
  double oversample = 0;
  Statistic statistic = Statistic::kMasked;
  Straggler straggler = Straggler::kMask;
  absl::Duration wait = absl::Seconds(60);  // T, from the beginning of a group, or of its wave.
  uint32_t reissues = 2;
  uint32_t min_trainable = 1;
  uint32_t max_version_span = 0;  // 0: eta.
  int64_t max_steps = 0;          // 0: none.
  Durability durability = Durability::kMemory;
  uint64_t quota_bytes = 8ull << 30;
  absl::Duration lease = absl::Seconds(60);
  // A member reserves room for this many tokens, prompt included, with this many bytes each.
  uint32_t member_tokens = 0;
  uint32_t token_bytes = 0;
  std::vector<SourceSpec> sources;
  Sampler sampler = Sampler::kUniform;
  double level_up = 0.7;        // With kLevels: the mean reward at which the next level begins,
  uint32_t level_window = 200;  // of so many answers.
  // After this many perfect visits in a row (GroupResult::perfect) a row rests for rest_steps
  // steps. 0: none does.
  uint32_t rest_after = 0;
  uint32_t rest_steps = 20;
  uint32_t epochs = 0;  // 0: until limits end it.
  Filter filter = Filter::kNone;
  uint32_t max_rejected_steps = 10;
  std::vector<TaskSpec> tasks;
  Sampling sampling;
  bool rows_only = false;
  bool skip_bad_rows = false;

  uint32_t slots_per_step() const;  // ceil(B (1 + oversample))
  uint32_t max_eta_adm() const { return admission_staleness.value_or(max_staleness); }
  // A rollout that holds a member and stores nothing of it for this long loses it.
  absl::Duration stalled_after() const { return 10 * wait; }
  bool has_task(Granularity granularity) const;
  // What a group reserves: its members, and room for what group tasks write for all of it.
  uint64_t group_bytes() const {
    return group_size * member_bytes() + (has_task(Granularity::kGroup) ? kFieldBytes : 0);
  }
  // What a member reserves: its tokens' columns, and room for whole fields and task results beside
  // them.
  uint64_t member_bytes() const { return uint64_t{member_tokens} * token_bytes + kFieldBytes; }
  static constexpr uint64_t kFieldBytes = 8192;

  bool operator==(const Spec&) const = default;
};
// The log stores the fields in this order. A change raises kFormat (codec.h).
SLUICE_FIELDS(Spec, seed, deterministic, policies, groups_per_step, group_size, group_min,
              first_wave, max_staleness, admission_staleness, min_ess, max_kl, oversample,
              statistic, straggler, wait, reissues, min_trainable, max_version_span, max_steps,
              durability, quota_bytes, lease, member_tokens, token_bytes, sources, sampler,
              level_up, level_window, rest_after, rest_steps, epochs, filter, max_rejected_steps,
              tasks, sampling, rows_only, skip_bad_rows)

struct Worker {
  std::string id;
  WorkerRole role = WorkerRole::kNone;
  int64_t incarnation = 0;
};

struct Loaded {
  uint32_t policy = 0;
  PolicyVersion version;
  bool verified = false;
};

struct Lease {
  Id16 id;
  absl::Duration ttl;
};

// A named column of a piece, or a named value. The queue reads the columns `tokens`, I32 [count],
// and `logprobs`, F32 [count], and the values that a task writes as `task_reward`, one F64,
// `verdict`, `reward_status` and `reward_info`. Of other fields it checks only that F32 and F64
// numbers are finite.
struct Field {
  std::string name;
  int dtype = 0;  // Dtype of the wire.
  std::vector<int64_t> shape;
  std::vector<uint32_t> rows;  // Sizes of the rows, if they differ.
  uint32_t round = 0;          // Of scoring, if a task wrote it.
  Bytes bytes;
};

// What one Put appends to a member, or (role PROMPT, no member) to its group.
struct Piece {
  uint64_t at = 0;
  uint32_t segment = 0;
  std::optional<uint32_t> parent;
  SegmentRole role = SegmentRole::kPrompt;
  uint32_t turn = 0;
  uint32_t count = 0;
  bool trainable = false;
  std::vector<VersionRun> runs;
  std::optional<absl::Duration> duration;
};

struct Record {
  TrajectoryRef owner;
  std::optional<Id16> task;
  Id16 lease;
  std::optional<Piece> piece;
  std::vector<Field> fields;
  bool last = false;
};

// The name of a generation of the rewards (see TaskQueue) for people: eight hex digits.
std::string GenerationName(uint32_t generation);

// A run of a member's tokens. Place 0 is the first token of the prompt.
struct TokenRun {
  uint64_t first = 0;
  uint64_t count = 0;
  auto operator<=>(const TokenRun&) const = default;
};

enum class NodeKind {
  kJob = 1,
  kStep,
  kBatch,
  kGroup,
  kTrajectory,
  kTask,
  kCall,
  kLease,
  kSlot,
  kBytes,
  kVersion,
  kChunk,
  kDaemon,
  kStore
};

struct Node {
  NodeKind kind = NodeKind::kJob;
  std::string id;
  std::string daemon;
};

// One wait: who waits, on what, since when and why. `next` and `next_in` tell what happens by
// itself, `hint` what a person can do.
struct WaitEdge {
  Node waiter, on;
  absl::Duration since;
  std::string cause, next;
  absl::Duration next_in;
  std::string hint;
};

// The ledger of a job after one event. Numbers count trajectories unless their names say tokens.
struct Ledger {
  int64_t accepted = 0, durable = 0, applied = 0, live = 0;
  std::map<std::string, int64_t> dropped;  // By reason, zeros included.
  int64_t tokens_generated = 0, tokens_trained = 0, tokens_masked = 0;
  int64_t durable_version = 0;
  std::string hash = std::string(32, '\0');  // H(K)
  uint64_t event = 0;

  int64_t dropped_total() const;
  // accepted - (durable + applied + live + dropped): 0, always.
  int64_t gap() const { return accepted - durable - applied - live - dropped_total(); }
};

// The reasons for which trajectories are dropped; there is no other.
inline constexpr std::array<const char*, 14> kDropReasons = {
    "stale",           "off_branch", "filtered",    "shrunk",   "straggler",
    "unscorable",      "lost",       "nonfinite",   "env_lost", "reward_timeout",
    "prompt_too_long", "bad_row",    "client_gone", "closed"};
bool IsDropReason(absl::string_view reason);
// Reasons after which the prompt is drawn again, `reissues` times, then quarantined.
bool IsReissued(absl::string_view reason);

}  // namespace sluice::queue
