#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

enum class GroupState { kOpen, kAccepted, kInBatch };
enum class MemberState { kReserved, kRunning, kSealed, kDropped };
enum class TaskState { kWaiting, kReady, kLeased, kDone, kDead };
const char* Name(GroupState state);
const char* Name(MemberState state);
const char* Name(TaskState state);

// A piece as stored, with its columns.
struct StoredPiece {
  Piece piece;
  std::vector<Field> fields;

  const Field* Find(absl::string_view name) const;
  bool lost() const;  // Some of its bytes are.
};

// Fields up to this size ride in the grant of a batch or a task; larger ones are read by Get.
inline constexpr uint64_t kInlineBytes = 64;

// Owner of a task or field that no single member owns: the group.
inline constexpr uint32_t kWholeGroup = ~0u;

// How far one of the tasks is, for a member or for the group; in the order of Spec::tasks. Tasks of
// the other granularity are done from the start.
struct TaskProgress {
  TaskState state = TaskState::kWaiting;
  Id16 id;
  uint32_t tries = 0;         // Left.
  std::optional<Id16> lease;  // While leased.
  std::string worker;         // Who holds it, or held it last.
  Instant since;              // In this state.
  Instant not_before;         // Ready, but not to be leased earlier.
  std::string cause;          // Of the last failure.
  uint32_t round = 1;         // Of scoring.
  // Written, not yet visible; whose: a member's, or kWholeGroup.
  std::vector<std::pair<uint32_t, Field>> staged;
};

// The pieces of a member or of a group's prompt, in order, with the checksums of what they hold.
class TokenLog {
 public:
  // `at`: tokens that lie before this log (the group's prompt, for a member's).
  uint64_t tokens() const { return tokens_; }
  uint64_t bytes() const { return bytes_; }
  const std::vector<StoredPiece>& pieces() const { return pieces_; }
  // Lowest version number among trainable tokens; the largest int64 if there are none.
  int64_t oldest() const { return oldest_; }
  // CRC32C of all tokens followed by all log-probs, as in the canonical bytes.
  uint32_t crc32c() const;

  void Append(StoredPiece piece);
  bool lost() const;  // Some of its bytes are.
  // Whether tokens [at, at + count) as stored equal the piece: roles, versions, tokens, log-probs;
  // where the boundaries are the same, all other columns too. `base`: tokens before this log. Of
  // lost bytes the checksums are compared.
  bool Holds(const StoredPiece& piece, uint64_t base) const;

 private:
  friend struct Access;  // dump.cc
  std::vector<StoredPiece> pieces_;
  uint64_t tokens_ = 0, bytes_ = 0, logprob_bytes_ = 0;
  uint32_t crc_tokens_ = 0, crc_logprobs_ = 0;
  int64_t oldest_ = std::numeric_limits<int64_t>::max();
};

struct GroupMember {
  MemberState state = MemberState::kReserved;
  bool granted = false;  // At least once: it counts as accepted.
  uint32_t attempt = 1;
  std::optional<Id16> lease;
  std::string worker;      // Who holds it, or held it last.
  Instant since;           // In this state.
  Instant began;           // First granted.
  int64_t began_at = 0;    // K then.
  Instant progress;        // The holder's last grant or stored piece.
  uint32_t stalls = 0;     // Holders in a row that stored nothing for too long.
  TokenLog log;            // Without the group's prompt.
  uint64_t generated = 0;  // SAMPLED tokens.
  // Whole fields, of the rollout and of tasks; the last round's.
  std::map<std::string, Field> fields;
  std::vector<Field> past;  // Of earlier rounds.
  uint64_t field_bytes = 0;
  Finish finish = Finish::kNone;
  std::optional<Id16> sealed_by;
  int64_t sealed_at = 0;  // K then.
  std::optional<double> task_reward;
  std::vector<TaskProgress> tasks;
  std::string drop_reason;

  bool scored() const;  // Sealed, and all its tasks are done.
  uint64_t stored() const { return log.bytes() + field_bytes; }
  bool lost() const;  // Some of its bytes are.
};

struct Group {
  GroupId id;
  GroupState state = GroupState::kOpen;
  RowRef row;
  std::optional<Row> own;  // A prompt from outside.
  int64_t slot = -1;       // Step whose slot it holds; -1: none (spent by its batch).
  int64_t cut_key = 0;     // Oldest version, once accepted.
  Instant opened;
  Instant since;         // In this state.
  bool overdue = false;  // Open for longer than the straggler time.
  TokenLog prompt;
  std::vector<GroupMember> members;
  std::vector<TaskProgress> tasks;      // Empty where no task is a group's.
  std::map<std::string, Field> fields;  // That group tasks wrote for the whole group: verdict.
  uint64_t field_bytes = 0;
  std::optional<uint32_t> generation;  // Of the reward that scores it, from the first lease on.
  int64_t batch = -1;                  // k, in a batch.
  // A restart of the queue lost its payload. Decided then: while a log without payload is replayed,
  // bytes are lost that were there when the events behind them were decided.
  bool payload_lost = false;

  uint32_t standing() const;  // Members not dropped.
  uint32_t scored() const;    // Members scored.
  bool complete() const;      // Each standing member is scored, and so is the group.
  bool has_unheld() const;    // A member that nobody holds and that is not sealed or dropped.
  uint64_t stored() const;
  bool lost() const;  // Some of its bytes are, in this process.
  // Oldest version number among trainable tokens; the largest int64 if there are none.
  int64_t oldest() const;
};

// Calls f(first place, count, version) for each run of trainable tokens of a member, in order;
// places count the prompt.
void ForEachTrainable(const GroupMember& member,
                      const std::function<void(uint64_t, uint64_t, const PolicyVersion&)>& f);

// Checks a piece on its own: shapes of its columns, roles, runs, finite numbers. INVALID_ARGUMENT
// says which and why.
absl::Status CheckPiece(const StoredPiece& piece, bool group_owned, size_t policies);
// Checks that a piece may follow what `log` holds: segments never fall and are uniform.
// INVALID_ARGUMENT.
absl::Status CheckFollows(const Piece& piece, const TokenLog& log);
// INVALID_ARGUMENT: an F32 or F64 field holds a number that is not finite.
absl::Status CheckFinite(const Field& field);

}  // namespace sluice::queue
