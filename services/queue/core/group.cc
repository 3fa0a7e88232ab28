#include "services/queue/core/group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace sluice::queue {

const char* Name(GroupState state) {
  switch (state) {
    case GroupState::kOpen: return "open";
    case GroupState::kAccepted: return "accepted";
    case GroupState::kInBatch: return "in_batch";
  }
  return "";
}

const char* Name(MemberState state) {
  switch (state) {
    case MemberState::kReserved: return "reserved";
    case MemberState::kRunning: return "running";
    case MemberState::kSealed: return "sealed";
    case MemberState::kDropped: return "dropped";
  }
  return "";
}

const char* Name(TaskState state) {
  switch (state) {
    case TaskState::kWaiting: return "waiting";
    case TaskState::kReady: return "ready";
    case TaskState::kLeased: return "leased";
    case TaskState::kDone: return "done";
    case TaskState::kDead: return "dead";
  }
  return "";
}

const Field* StoredPiece::Find(absl::string_view name) const {
  for (const Field& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

bool StoredPiece::lost() const {
  return std::any_of(fields.begin(), fields.end(),
                     [](const Field& field) { return field.bytes.lost(); });
}

bool TokenLog::lost() const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [](const StoredPiece& piece) { return piece.lost(); });
}

uint32_t TokenLog::crc32c() const {
  return Crc32cConcat(crc_tokens_, crc_logprobs_, logprob_bytes_);
}

void TokenLog::Append(StoredPiece piece) {
  tokens_ += piece.piece.count;
  for (const Field& field : piece.fields) bytes_ += field.bytes.size;
  if (piece.piece.trainable) {
    for (const VersionRun& run : piece.piece.runs) oldest_ = std::min(oldest_, run.version.number);
  }
  const Bytes& tokens = piece.Find("tokens")->bytes;
  crc_tokens_ = Crc32cConcat(crc_tokens_, tokens.crc32c, tokens.size);
  if (const Field* logprobs = piece.Find("logprobs")) {
    crc_logprobs_ = Crc32cConcat(crc_logprobs_, logprobs->bytes.crc32c, logprobs->bytes.size);
    logprob_bytes_ += logprobs->bytes.size;
  }
  pieces_.push_back(std::move(piece));
}

namespace {
// All that makes a token the same as another one.
struct TokenImage {
  int32_t token = 0;
  float logprob = 0;
  SegmentRole role = SegmentRole::kPrompt;
  bool trainable = false;
  VersionRun run;
  bool operator==(const TokenImage& other) const {
    return token == other.token &&
           std::bit_cast<uint32_t>(logprob) == std::bit_cast<uint32_t>(other.logprob) &&
           role == other.role && trainable == other.trainable && run.version == other.run.version &&
           run.policy == other.run.policy;
  }
};

void AppendImages(const StoredPiece& stored, uint64_t from, uint64_t to,
                  std::vector<TokenImage>& out) {
  const Piece& piece = stored.piece;
  const Field* tokens = stored.Find("tokens");
  const Field* logprobs = stored.Find("logprobs");
  size_t run = 0;
  uint64_t run_end = piece.runs.empty() ? piece.count : piece.runs[0].count;
  for (uint64_t i = 0; i < piece.count; ++i) {
    while (i >= run_end) run_end += piece.runs[++run].count;
    const uint64_t place = piece.at + i;
    if (place < from || place >= to) continue;

    TokenImage image;
    image.role = piece.role;
    image.trainable = piece.trainable;
    std::memcpy(&image.token, tokens->bytes.data.get() + 4 * i, 4);
    if (logprobs != nullptr) std::memcpy(&image.logprob, logprobs->bytes.data.get() + 4 * i, 4);
    if (!piece.runs.empty()) image.run = piece.runs[run];
    out.push_back(image);
  }
}
}  // namespace

bool TokenLog::Holds(const StoredPiece& piece, uint64_t base) const {
  const uint64_t from = piece.piece.at, to = from + piece.piece.count;
  if (from < base || to > base + tokens_) return false;

  std::vector<TokenImage> stored, given;
  bool any_lost = false;
  for (const StoredPiece& mine : pieces_) {
    if (mine.piece.at + mine.piece.count <= from || mine.piece.at >= to) continue;
    if (mine.piece.at == from && mine.piece.count == piece.piece.count) {
      for (const Field& field : piece.fields) {
        const Field* other = mine.Find(field.name);
        if (other == nullptr || !(other->bytes == field.bytes)) return false;
      }
    }
    // Lost tokens cannot be compared one by one.
    any_lost |= mine.lost();
    if (any_lost) continue;
    AppendImages(mine, from, to, stored);
  }

  if (any_lost) return true;
  AppendImages(piece, from, to, given);
  return stored == given;
}

namespace {
bool AnyLost(const std::map<std::string, Field>& fields) {
  return std::any_of(fields.begin(), fields.end(),
                     [](const auto& field) { return field.second.bytes.lost(); });
}
}  // namespace

bool GroupMember::lost() const { return log.lost() || AnyLost(fields); }

bool Group::lost() const {
  return prompt.lost() || AnyLost(fields) ||
         std::any_of(members.begin(), members.end(), [](const GroupMember& m) { return m.lost(); });
}

bool GroupMember::scored() const {
  return state == MemberState::kSealed &&
         std::all_of(tasks.begin(), tasks.end(),
                     [](const TaskProgress& task) { return task.state == TaskState::kDone; });
}

uint32_t Group::standing() const {
  return static_cast<uint32_t>(
      std::count_if(members.begin(), members.end(),
                    [](const GroupMember& m) { return m.state != MemberState::kDropped; }));
}

uint32_t Group::scored() const {
  return static_cast<uint32_t>(std::count_if(members.begin(), members.end(),
                                             [](const GroupMember& m) { return m.scored(); }));
}

bool Group::complete() const {
  return std::all_of(
             members.begin(), members.end(),
             [](const GroupMember& m) { return m.state == MemberState::kDropped || m.scored(); }) &&
         std::all_of(tasks.begin(), tasks.end(),
                     [](const TaskProgress& task) { return task.state == TaskState::kDone; });
}

bool Group::has_unheld() const {
  return std::any_of(members.begin(), members.end(), [](const GroupMember& m) {
    return (m.state == MemberState::kReserved || m.state == MemberState::kRunning) && !m.lease;
  });
}

uint64_t Group::stored() const {
  uint64_t total = prompt.bytes() + field_bytes;
  for (const GroupMember& member : members) total += member.stored();
  return total;
}

int64_t Group::oldest() const {
  int64_t oldest = std::numeric_limits<int64_t>::max();
  for (const GroupMember& member : members) {
    if (member.state != MemberState::kDropped) oldest = std::min(oldest, member.log.oldest());
  }
  return oldest;
}

void ForEachTrainable(const GroupMember& member,
                      const std::function<void(uint64_t, uint64_t, const PolicyVersion&)>& f) {
  for (const StoredPiece& stored : member.log.pieces()) {
    if (!stored.piece.trainable) continue;
    uint64_t first = stored.piece.at;
    for (const VersionRun& run : stored.piece.runs) {
      f(first, run.count, run.version);
      first += run.count;
    }
  }
}

namespace {
absl::Status Bad(absl::string_view message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_PIECE", message);
}

// Whether no number has all bits of `kExponent` set: such a number is infinite or NaN. Each F32
// and F64 number that a client puts is checked here, under the job's lock, so the loop goes by
// blocks of a fixed length, which the compiler turns into vector code.
template <typename Word, Word kExponent>
bool AllFinite(const Bytes& bytes) {
  constexpr uint64_t kBlock = 64;
  const char* at = bytes.data.get();
  const auto not_finite = [](const char* from) {
    Word word;
    std::memcpy(&word, from, sizeof(Word));
    return static_cast<Word>((word & kExponent) == kExponent);
  };
  uint64_t left = bytes.size / sizeof(Word);
  for (; left >= kBlock; left -= kBlock, at += kBlock * sizeof(Word)) {
    Word found = 0;
    for (uint64_t i = 0; i < kBlock; ++i) found |= not_finite(at + i * sizeof(Word));
    if (found != 0) return false;
  }
  for (; left > 0; --left, at += sizeof(Word)) {
    if (not_finite(at) != 0) return false;
  }
  return true;
}
}  // namespace

absl::Status CheckFinite(const Field& field) {
  if (field.bytes.lost()) return absl::OkStatus();  // Checked when it was stored.
  const bool finite = field.dtype == static_cast<int>(Dtype::kF32)
                          ? AllFinite<uint32_t, 0x7f800000>(field.bytes)
                      : field.dtype == static_cast<int>(Dtype::kF64)
                          ? AllFinite<uint64_t, 0x7ff0000000000000>(field.bytes)
                          : true;
  if (finite) return absl::OkStatus();
  return Error(
      absl::StatusCode::kInvalidArgument, "NOT_FINITE",
      absl::StrCat("field ", field.name, " holds NaN or infinity; drop the member as nonfinite"));
}

absl::Status CheckPiece(const StoredPiece& stored, bool group_owned, size_t policies) {
  const Piece& piece = stored.piece;
  if (piece.count == 0) return Bad("the piece has count 0; a piece has at least one token");

  const bool sampled = piece.role == SegmentRole::kSampled;
  if (group_owned && piece.role != SegmentRole::kPrompt)
    return Bad("only a PROMPT piece may belong to the whole group");
  if (piece.trainable && !sampled) return Bad("only SAMPLED tokens may be trainable");

  const Field* tokens = stored.Find("tokens");
  if (tokens == nullptr || tokens->dtype != static_cast<int>(Dtype::kI32) ||
      tokens->bytes.size != 4ull * piece.count) {
    return Bad(absl::StrCat("column tokens must be I32 [", piece.count, "]"));
  }

  const Field* logprobs = stored.Find("logprobs");
  if (!sampled && (logprobs != nullptr || !piece.runs.empty()))
    return Bad("only SAMPLED tokens have logprobs and runs");
  if (sampled) {
    if (logprobs == nullptr || logprobs->dtype != static_cast<int>(Dtype::kF32) ||
        logprobs->bytes.size != 4ull * piece.count) {
      return Bad(absl::StrCat("column logprobs must be F32 [", piece.count, "]"));
    }

    uint64_t stamped = 0;
    for (const VersionRun& run : piece.runs) {
      if (run.count == 0 || run.policy >= policies || run.version.number < 0) {
        return Bad(absl::StrCat("a run has count ", run.count, ", policy ", run.policy,
                                " and version ", run.version.number,
                                "; wanted a count of at least 1, a policy below ", policies,
                                " and a version of at least 0"));
      }
      stamped += run.count;
    }
    if (stamped != piece.count)
      return Bad(absl::StrCat("the runs stamp ", stamped, " of the piece's ", piece.count,
                              " tokens; every sampled token needs a version"));
  }

  for (const Field& field : stored.fields) SLUICE_RETURN_IF_ERROR(CheckFinite(field));
  return absl::OkStatus();
}

GroupResult ResultOf(const Group& group, int64_t step, const Spec& spec) {
  // Weights of rewards that add up to 1 may give a little less.
  constexpr double kPerfect = 1 - 1e-6;
  GroupResult result{.step = step, .row = group.row, .perfect = true};
  const size_t counted = spec.first_wave > 0 ? spec.first_wave : group.members.size();
  for (size_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state != MemberState::kSealed || !member.task_reward.has_value()) continue;
    result.perfect = result.perfect && *member.task_reward >= kPerfect;
    if (m >= counted) continue;
    result.sum += *member.task_reward;
    ++result.answers;
  }
  return result;
}

absl::Status CheckFollows(const Piece& piece, const TokenLog& log) {
  if (log.pieces().empty()) return absl::OkStatus();
  const Piece& last = log.pieces().back().piece;
  if (piece.segment < last.segment)
    return Bad(absl::StrCat("segment ", piece.segment, " comes after segment ", last.segment,
                            "; the numbers of segments never fall"));
  if (piece.segment == last.segment &&
      (piece.role != last.role || piece.turn != last.turn || piece.trainable != last.trainable)) {
    return Bad(absl::StrCat("the piece changes role, turn or trainable within segment ",
                            piece.segment, "; begin a new segment"));
  }
  return absl::OkStatus();
}

}  // namespace sluice::queue
