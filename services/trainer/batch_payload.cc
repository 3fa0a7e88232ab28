#include "services/trainer/batch_payload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/models/moe.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::trainer {
namespace {

using common::v1::Field;
using common::v1::Record;

constexpr uint64_t kMaxTokens = 1 << 26;                    // Limit for one trajectory.
constexpr uint64_t kTokenRewardBytes = 2 * sizeof(double);  // Of a row of rew_tok.

// Where the columns of one owner are written while they are read.
struct Slot {
  Trajectory* trajectory = nullptr;  // Null for a group's prompt.
  std::vector<int32_t> prompt;       // Tokens of the group's prompt.
  std::vector<uint8_t> sampled;      // [T] 1 if the token has a log-prob.
  std::vector<double> rew_tok;       // [n, 2] the field of this name.
  // The pieces to train on, by their place: a piece may be read twice.
  std::map<uint64_t, common::v1::Piece> pieces;
};

// Key of an owner: the group's id and the member. The key of a prompt is the group's id alone.
std::string KeyOf(const common::v1::TrajectoryRef& owner) {
  return owner.has_member() ? absl::StrCat(owner.group(), "/", owner.member()) : owner.group();
}

// The turns of a member, from its pieces that are trained on.
std::vector<Turn> TurnsOf(const std::map<uint64_t, common::v1::Piece>& pieces) {
  std::vector<Turn> turns;
  std::optional<uint32_t> number;
  for (const auto& [at, piece] : pieces) {
    if (number != piece.turn()) turns.push_back({.first = at});
    number = piece.turn();
    turns.back().count = at + piece.count() - turns.back().first;
    if (piece.has_duration())
      turns.back().seconds = absl::ToDoubleSeconds(rpc::FromProto(piece.duration()));
  }
  return turns;
}

// Sets what single tokens have earned, from a field rew_tok [n, 2] of positions and values.
absl::Status ReadTokenRewards(absl::Span<const double> rows, Trajectory& trajectory) {
  for (size_t i = 0; i + 1 < rows.size(); i += 2) {
    // A position must be a number that a cast keeps, and lie on a token that was sampled to be
    // trained. The mask does not yet leave out stale ones.
    const double position = rows[i];
    const bool fits = position >= 0 && position < static_cast<double>(trajectory.mask.size()) &&
                      position == std::floor(position);
    if (!fits || trajectory.mask[static_cast<size_t>(position)] == 0 ||
        !std::isfinite(rows[i + 1]) || (i > 0 && position <= rows[i - 2])) {
      return absl::DataLossError(absl::StrCat("row ", i / 2, " of rew_tok is ", position, ", ",
                                              rows[i + 1],
                                              ", wanted: the next trainable token, and a finite "
                                              "value"));
    }
    trajectory.token_rewards.push_back({static_cast<uint64_t>(position), rows[i + 1]});
  }
  return absl::OkStatus();
}

// Assembles the groups of one slice: OpenGroup() allocates the columns and lists what to read,
// FindPlace() says where the bytes of a field go, CloseGroup() checks the members.
class Assembly {
 public:
  Assembly(const queue::v1::Batch& batch, uint64_t experts, bool rewards)
      : batch_(batch), experts_(experts), rewards_(rewards) {
    groups_.resize(batch.groups_size());
    for (int g = 0; g < batch.groups_size(); ++g)
      groups_[g].members.resize(batch.groups(g).members_size());
  }

  absl::StatusOr<std::vector<Group>> Run(QueueClient& queue) {
    std::vector<common::v1::Want> wants;
    for (int g = 0; g < batch_.groups_size(); ++g)
      SLUICE_RETURN_IF_ERROR(OpenGroup(batch_.groups(g), groups_[g], wants));
    SLUICE_RETURN_IF_ERROR(
        queue.Get(batch_.lease().id(), wants,
                  [this](const Record& record, int field) { return FindPlace(record, field); }));
    SLUICE_RETURN_IF_ERROR(failure_);
    for (int g = 0; g < batch_.groups_size(); ++g)
      SLUICE_RETURN_IF_ERROR(CloseGroup(batch_.groups(g), groups_[g]));
    return std::move(groups_);
  }

 private:
  absl::Status OpenGroup(const queue::v1::BatchGroup& from, Group& to,
                         std::vector<common::v1::Want>& wants);
  // Returns the place for the bytes of a field, or null to skip them. An error is kept in failure_.
  char* FindPlace(const Record& record, int index);
  char* PlaceInPrompt(const Field& field, uint64_t at, uint64_t count, Slot& slot);
  char* PlaceTokenRewards(const Record& record, const Field& field, Slot& slot);
  char* PlaceInMember(const Record& record, const Field& field, Slot& slot);
  absl::Status CloseGroup(const queue::v1::BatchGroup& from, Group& to);
  char* Fail(const Record& record, absl::string_view what) {
    failure_ = absl::DataLossError(absl::StrCat("group ", ToHex(record.owner().group()), " member ",
                                                record.owner().member(), ": ", what));
    return nullptr;
  }

  // Bytes per token of a field; 0 if the field is not read.
  uint64_t BytesPerToken(absl::string_view field) const {
    if (field == "tokens" || field == "logprobs") return 4;
    return field == "routing" ? experts_ * sizeof(uint16_t) : 0;
  }

  const queue::v1::Batch& batch_;
  const uint64_t experts_;  // Entries per token.
  const bool rewards_;
  std::vector<Group> groups_;
  absl::flat_hash_map<std::string, Slot> slots_;  // By KeyOf.
  absl::Status failure_;
};

absl::Status Assembly::OpenGroup(const queue::v1::BatchGroup& from, Group& to,
                                 std::vector<common::v1::Want>& wants) {
  SLUICE_ASSIGN_OR_RETURN(to.id, Id16::FromBytes(from.group()));
  to.pool.assign(from.pool().begin(), from.pool().end());
  common::v1::Want& prompt = wants.emplace_back();
  prompt.mutable_owner()->set_group(from.group());
  prompt.add_names("tokens");
  slots_[KeyOf(prompt.owner())] = {};

  for (int m = 0; m < from.members_size(); ++m) {
    const queue::v1::BatchMember& member = from.members(m);
    Trajectory& trajectory = to.members[m];
    trajectory.member = member.member();
    trajectory.attempt = member.attempt();
    trajectory.crc32c = member.crc32c();
    for (const queue::v1::TokenRun& run : member.masked())
      trajectory.masked.push_back({run.first(), run.count()});
    trajectory.truncated = member.finish() == common::v1::FINISH_LENGTH ||
                           member.finish() == common::v1::FINISH_TRUNCATED;
    trajectory.tokens.resize(member.tokens());
    trajectory.mask.resize(member.tokens());
    trajectory.logprobs.resize(member.tokens());
    trajectory.versions.assign(member.tokens(), -1);

    common::v1::Want& want = wants.emplace_back();
    want.mutable_owner()->set_group(from.group());
    want.mutable_owner()->set_member(member.member());
    want.mutable_owner()->set_attempt(member.attempt());
    want.add_names("tokens");
    want.add_names("logprobs");
    want.add_names("rew_tok");
    if (experts_ > 0) want.add_names("routing");
    trajectory.routing.assign(member.tokens() * experts_, kAnyExpert);
    slots_[KeyOf(want.owner())] = {&trajectory, {}, std::vector<uint8_t>(member.tokens()), {}, {}};
  }
  return absl::OkStatus();
}

char* Assembly::FindPlace(const Record& record, int index) {
  const Field& field = record.fields(index);
  const auto slot = slots_.find(KeyOf(record.owner()));
  const uint64_t width = BytesPerToken(field.name());
  if (slot != slots_.end() && !record.has_piece() && field.name() == "rew_tok" &&
      slot->second.trajectory != nullptr)
    return PlaceTokenRewards(record, field, slot->second);
  if (slot == slots_.end() || !record.has_piece() || width == 0) return nullptr;
  const uint64_t count = record.piece().count(),
                 unit = field.name() == "routing" ? sizeof(uint16_t) : sizeof(int32_t);

  // The limits on count and place bound the memory that a prompt may take.
  if (count > kMaxTokens || record.piece().at() > kMaxTokens || field.from() % unit != 0 ||
      field.bytes() % unit != 0 || field.from() > count * width ||
      field.bytes() > count * width - field.from()) {
    return Fail(record, absl::StrCat("field ", field.name(), " does not fit its piece of ", count,
                                     " tokens"));
  }

  if (slot->second.trajectory == nullptr)
    return PlaceInPrompt(field, record.piece().at(), count, slot->second);
  return PlaceInMember(record, field, slot->second);
}

char* Assembly::PlaceInPrompt(const Field& field, uint64_t at, uint64_t count, Slot& slot) {
  if (field.name() != "tokens") return nullptr;
  if (slot.prompt.size() < at + count) slot.prompt.resize(at + count);
  return reinterpret_cast<char*>(slot.prompt.data() + at) + field.from();
}

char* Assembly::PlaceTokenRewards(const Record& record, const Field& field, Slot& slot) {
  const uint64_t total = std::max(field.total(), field.bytes());
  if (total % kTokenRewardBytes != 0 || total / kTokenRewardBytes > slot.sampled.size() ||
      field.from() > total || field.bytes() > total - field.from()) {
    return Fail(record, absl::StrCat("rew_tok has ", total, " bytes, wanted: a multiple of ",
                                     kTokenRewardBytes, ", and no more rows than ",
                                     slot.sampled.size(), " tokens"));
  }
  slot.rew_tok.resize(total / sizeof(double));
  return reinterpret_cast<char*>(slot.rew_tok.data()) + field.from();
}

char* Assembly::PlaceInMember(const Record& record, const Field& field, Slot& slot) {
  const common::v1::Piece& piece = record.piece();
  Trajectory& trajectory = *slot.trajectory;
  if (piece.at() + piece.count() > trajectory.tokens.size()) {
    return Fail(record, absl::StrCat("a piece ends at ", piece.at() + piece.count(), " of ",
                                     trajectory.tokens.size(), " tokens"));
  }
  if (field.name() == "routing") {  // Row t has the experts with which token t + 1 was sampled.
    if (piece.at() == 0) return Fail(record, "a sampled token needs a token before it");
    return reinterpret_cast<char*>(trajectory.routing.data() + (piece.at() - 1) * experts_) +
           field.from();
  }
  if (field.name() == "logprobs") {
    std::fill_n(slot.sampled.begin() + piece.at(), piece.count(), 1);
    return reinterpret_cast<char*>(trajectory.logprobs.data() + piece.at()) + field.from();
  }

  if (piece.role() == common::v1::SEGMENT_ROLE_SAMPLED && piece.trainable()) {
    slot.pieces[piece.at()] = piece;
    uint64_t t = piece.at();
    for (const common::v1::VersionRun& run : piece.runs()) {
      for (uint32_t i = 0; i < run.count() && t < piece.at() + piece.count(); ++i, ++t) {
        trajectory.mask[t] = 1;
        trajectory.versions[t] = run.version().number();
      }
    }
  }
  return reinterpret_cast<char*>(trajectory.tokens.data() + piece.at()) + field.from();
}

absl::Status CheckMember(const queue::v1::BatchMember& member, const Trajectory& trajectory,
                         size_t prompt, const std::vector<uint8_t>& sampled) {
  const auto bytes = [](const auto* data, size_t count) {
    return absl::string_view(reinterpret_cast<const char*>(data), count * 4);
  };
  uint32_t crc =
      Crc32c(bytes(trajectory.tokens.data() + prompt, trajectory.tokens.size() - prompt));

  // The CRC covers the log-probs of each run of sampled tokens, in order.
  for (size_t t = prompt; t < sampled.size();) {
    size_t end = t;
    while (end < sampled.size() && sampled[end]) ++end;
    crc = Crc32c(bytes(trajectory.logprobs.data() + t, end - t), crc);
    t = end + 1;
  }

  if (crc != member.crc32c()) {
    return absl::DataLossError(absl::StrCat("the CRC32C of its tokens and log-probs is ", crc,
                                            ", but the batch says ", member.crc32c()));
  }

  const uint64_t trained =
      static_cast<uint64_t>(std::count(trajectory.mask.begin(), trajectory.mask.end(), 1));
  if (trained != member.trained()) {
    return absl::DataLossError(absl::StrCat(
        "it has ", trained, " tokens to train, but the batch says ", member.trained()));
  }
  return absl::OkStatus();
}

absl::Status ReadReward(const queue::v1::BatchMember& member, Trajectory& trajectory) {
  for (const Field& field : member.fields()) {
    if (field.name() != "task_reward" || field.inline_().size() != sizeof(double)) continue;
    std::memcpy(&trajectory.reward, field.inline_().data(), sizeof(double));
    return absl::OkStatus();
  }
  return absl::DataLossError("it has no task_reward");
}

absl::Status Assembly::CloseGroup(const queue::v1::BatchGroup& from, Group& to) {
  const std::vector<int32_t>& prompt = slots_[from.group()].prompt;
  for (int m = 0; m < from.members_size(); ++m) {
    Trajectory& trajectory = to.members[m];
    common::v1::TrajectoryRef owner;
    owner.set_group(from.group());
    owner.set_member(trajectory.member);
    const Slot& slot = slots_[KeyOf(owner)];
    const auto close = [&]() -> absl::Status {
      if (prompt.size() > trajectory.tokens.size())
        return absl::DataLossError("its prompt is longer than the whole trajectory");
      std::copy(prompt.begin(), prompt.end(), trajectory.tokens.begin());
      trajectory.turns = TurnsOf(slot.pieces);
      SLUICE_RETURN_IF_ERROR(ReadTokenRewards(slot.rew_tok, trajectory));
      for (const TokenRun& run : trajectory.masked) {
        // The sum of the two may wrap around.
        const uint64_t size = trajectory.mask.size();
        if (run.first > size || run.count > size - run.first)
          return absl::DataLossError("a masked run lies outside of the trajectory");
        std::fill_n(trajectory.mask.begin() + run.first, run.count, 0);
        std::fill_n(trajectory.versions.begin() + run.first, run.count, -1);
      }
      SLUICE_RETURN_IF_ERROR(CheckMember(from.members(m), trajectory, prompt.size(), slot.sampled));
      return rewards_ ? ReadReward(from.members(m), trajectory) : absl::OkStatus();
    };
    if (absl::Status status = close(); !status.ok()) {
      return Annotate(status, absl::StrCat("group ", to.id.hex(), " member ", trajectory.member));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Group>> FetchGroups(QueueClient& queue, const queue::v1::Batch& batch,
                                               int64_t experts, bool rewards) {
  if (batch.groups_size() == 0) return std::vector<Group>();
  return Assembly(batch, static_cast<uint64_t>(experts), rewards).Run(queue);
}

absl::StatusOr<std::vector<Group>> EncodeGroups(const RowEncoder& encode, bool skip_bad_rows,
                                                const queue::v1::Batch& batch) {
  std::vector<Group> groups;
  for (const queue::v1::BatchGroup& from : batch.groups()) {
    Group& to = groups.emplace_back();
    SLUICE_ASSIGN_OR_RETURN(to.id, Id16::FromBytes(from.group()));
    absl::StatusOr<std::vector<EncodedAnswer>> answers =
        encode(from.row().source(), from.row().json());
    if (!answers.ok()) {
      const absl::Status status = Annotate(
          answers.status(), absl::StrCat("row ", from.row().index(), " of ", from.row().source()));
      if (!skip_bad_rows) return status;
      log::Warning("bad_row", {{"error", status}});
      answers = std::vector<EncodedAnswer>(1);
    }
    if (from.members_size() != 1) {
      return absl::DataLossError(absl::StrCat("row ", from.row().index(), " of ",
                                              from.row().source(), " came as ", from.members_size(),
                                              " members"));
    }
    const queue::v1::BatchMember& member = from.members(0);
    for (EncodedAnswer& answer : *answers) {
      Trajectory& trajectory = to.members.emplace_back();
      trajectory.member = member.member() + static_cast<uint32_t>(to.members.size()) - 1;
      trajectory.attempt = member.attempt();
      trajectory.crc32c = member.crc32c();
      trajectory.tokens = std::move(answer.tokens);
      trajectory.mask = std::move(answer.mask);
    }
  }
  return groups;
}

}  // namespace sluice::trainer
