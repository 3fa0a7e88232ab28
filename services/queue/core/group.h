#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/queue/core/row_sampler.h"
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

  const Field* Find(absl::string_view name) const;  // Null: it has no such column.
  bool lost() const;                                // Whether bytes of some column are lost.
};

// Whole fields of a member of up to this size are sent with the grant of a batch, or of a task of
// that member; others are read by Get.
inline constexpr uint64_t kInlineBytes = 64;

// In place of a member's index: the task or field belongs to the group as a whole.
inline constexpr uint32_t kWholeGroup = ~0u;

// How far a task is, for one member or for a whole group. A sealed member, and a group if the job
// has a task of granularity group, each have a list with an entry for every task of Spec::tasks, in
// that order; entries of tasks of the other granularity are done from the start.
struct TaskProgress {
  TaskState state = TaskState::kWaiting;
  Id16 id;
  uint32_t tries = 0;         // Tries left.
  std::optional<Id16> lease;  // While leased.
  std::string worker;         // The holder, or the last one.
  Instant since;              // When it came into this state.
  Instant not_before;         // In state ready: it is not leased earlier.
  std::string cause;          // Why the last try failed.
  uint32_t round = 1;         // The round of scoring.
  // Fields that are written but not visible yet, each with its owner: a member, or kWholeGroup.
  std::vector<std::pair<uint32_t, Field>> staged;
};

// The pieces of a member or of a group's prompt, in order, with the checksums of what they hold.
class TokenLog {
 public:
  uint64_t tokens() const { return tokens_; }
  uint64_t bytes() const { return bytes_; }
  const std::vector<StoredPiece>& pieces() const { return pieces_; }
  // The lowest version number among trainable tokens, or the largest int64 if there are none.
  int64_t oldest() const { return oldest_; }
  // CRC32C of all tokens followed by all log-probs, as in the canonical bytes.
  uint32_t crc32c() const;

  void Append(StoredPiece piece);
  bool lost() const;  // Whether some of its bytes are lost.
  // Whether the stored tokens at the piece's place equal it: roles, versions, tokens, log-probs,
  // and all other columns if the boundaries are the same. `base`: how many tokens lie before this
  // log (the group's prompt, for a member). If stored bytes are lost, only the checksums of columns
  // with the same boundaries are compared; with other boundaries the piece counts as equal.
  bool Holds(const StoredPiece& piece, uint64_t base) const;

 private:
  friend struct Access;  // dump.cc
  std::vector<StoredPiece> pieces_;
  uint64_t tokens_ = 0, bytes_ = 0, logprob_bytes_ = 0;
  uint32_t crc_tokens_ = 0, crc_logprobs_ = 0;
  int64_t oldest_ = std::numeric_limits<int64_t>::max();
};

// A member of a group: one answer to its prompt. GroupTable alone changes it; see there.
struct GroupMember {
  MemberState state = MemberState::kReserved;
  bool granted = false;  // At least once: it counts as accepted.
  uint32_t attempt = 1;
  std::optional<Id16> lease;
  std::string worker;      // The holder, or the last one.
  Instant since;           // When it came into this state.
  Instant began;           // When it was first granted.
  int64_t began_at = 0;    // The job's version K at that time.
  Instant progress;        // When the holder got it or last stored a piece.
  uint32_t stalls = 0;     // Holders in a row that stored nothing for too long.
  TokenLog log;            // Its tokens without the group's prompt.
  uint64_t generated = 0;  // How many of them are SAMPLED.
  // Whole fields (not columns of pieces) that the rollout wrote, and those that tasks wrote in the
  // present round of scoring.
  std::map<std::string, Field> fields;
  std::vector<Field> past;  // What tasks wrote in earlier rounds.
  uint64_t field_bytes = 0;
  Finish finish = Finish::kNone;
  std::optional<Id16> sealed_by;  // The lease under which it was sealed.
  int64_t sealed_at = 0;          // The job's version K at that time.
  std::optional<double> task_reward;
  std::vector<TaskProgress> tasks;
  std::string drop_reason;

  bool scored() const;  // Sealed, and all its tasks are done.
  uint64_t stored() const { return log.bytes() + field_bytes; }
  bool lost() const;  // Whether some of its bytes are lost.
};

// The members that answer one prompt. GroupTable alone changes a group; see there.
struct Group {
  GroupId id;
  GroupState state = GroupState::kOpen;
  RowRef row;
  std::optional<Row> own;  // A prompt from outside.
  int64_t slot = -1;       // The step whose slot it holds. -1: none, its batch is closed.
  int64_t cut_key = 0;     // Once accepted: the oldest version of its tokens.
  Instant opened;
  Instant since;         // When it came into this state.
  Instant wave_began;    // When its last members were added: its straggler time begins then.
  bool overdue = false;  // It was open for longer than the straggler time.
  TokenLog prompt;
  std::vector<GroupMember> members;
  // Members of the second wave, until it is decided whether they are drawn: they are no members
  // yet. 0 from the decision on, and in groups without waves. Above 0 only while the group is open.
  uint32_t undrawn = 0;
  std::vector<TaskProgress> tasks;      // Empty if the job has no task of granularity group.
  std::map<std::string, Field> fields;  // What group tasks wrote for the whole group: the verdict.
  uint64_t field_bytes = 0;
  // The generation of the rewards that score it (see TaskQueue), once a task was leased.
  std::optional<uint32_t> generation;
  int64_t batch = -1;  // The step of its batch, if it is in one.
  // A restart of the queue lost its payload. This is remembered, because lost() also holds while a
  // log without payload is replayed, for events that were decided when the bytes were still there.
  bool payload_lost = false;

  uint32_t standing() const;  // Members not dropped.
  // Members with which it may end at most.
  uint32_t reachable() const { return standing() + undrawn; }
  uint32_t scored() const;  // Members scored.
  bool complete() const;    // Each standing member is scored, and the group's tasks are done.
  bool has_unheld() const;  // A member that nobody holds and that is not sealed or dropped.
  uint64_t stored() const;
  bool lost() const;  // Whether some of its bytes are lost in this process.
  // Oldest version number among trainable tokens; the largest int64 if there are none.
  int64_t oldest() const;
};

// Calls f(first place, count, version) for each run of trainable tokens of a member, in order;
// places count the prompt.
void ForEachTrainable(const GroupMember& member,
                      const std::function<void(uint64_t, uint64_t, const PolicyVersion&)>& f);

// What the group's answers have earned, for the sampler. `step`: the step that the group is for.
// With waves the answers of the first one count alone: whether there are others depends on what
// these have earned, so with them the mean would not be that of the prompt.
GroupResult ResultOf(const Group& group, int64_t step, const Spec& spec);

// Checks a piece on its own: shapes of its columns, roles, runs, finite numbers. INVALID_ARGUMENT
// says which and why.
absl::Status CheckPiece(const StoredPiece& piece, bool group_owned, size_t policies);
// INVALID_ARGUMENT: the piece cannot follow what `log` holds. Segment numbers never fall, and all
// pieces of a segment have the same role, turn and trainable.
absl::Status CheckFollows(const Piece& piece, const TokenLog& log);
// INVALID_ARGUMENT: an F32 or F64 field holds a number that is not finite.
absl::Status CheckFinite(const Field& field);

}  // namespace sluice::queue
