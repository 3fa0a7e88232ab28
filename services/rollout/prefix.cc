#include "services/rollout/prefix.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"

namespace sluice::rollout {
namespace {

constexpr uint64_t kNumberBytes = 4;  // Size of a token (int32), and of a log-prob (float).
constexpr uint8_t kTokens = 1, kLogprobs = 2;

// Collects the records of a prefix as they are received.
class PrefixBuffer {
 public:
  // The prefix has the positions [begin, end).
  PrefixBuffer(uint64_t begin, uint64_t end)
      : begin_(begin),
        end_(end),
        tokens_(end - begin),
        logprobs_(end - begin),
        versions_(end - begin),
        arrived_(end - begin) {}

  // Returns where the bytes of the field go. Null if the field was not asked for, or if the record
  // is not a piece within the prefix.
  char* Place(const common::v1::Record& record, int field_index) {
    const common::v1::Field& field = record.fields(field_index);
    const common::v1::Piece& piece = record.piece();
    const bool fits = record.has_piece() && piece.at() >= begin_ && piece.at() <= end_ &&
                      piece.count() <= end_ - piece.at() &&
                      field.bytes() == piece.count() * kNumberBytes;
    if (!fits) return nullptr;

    const bool is_tokens = field.name() == "tokens";
    if (!is_tokens && field.name() != "logprobs") return nullptr;
    const uint64_t at = piece.at() - begin_;
    for (uint64_t t = at; t < at + piece.count(); ++t)
      arrived_[t] |= is_tokens ? kTokens : kLogprobs;
    SetVersions(piece);
    return is_tokens ? reinterpret_cast<char*>(tokens_.data() + at)
                     : reinterpret_cast<char*>(logprobs_.data() + at);
  }

  // The number of positions whose token and log-prob have both arrived. They are counted by
  // position because a broken stream is read again from its start, so bytes may arrive twice.
  uint64_t complete_positions() const {
    return std::count(arrived_.begin(), arrived_.end(), kTokens | kLogprobs);
  }

  Trajectory MakeTrajectory() && {
    return Trajectory(static_cast<uint32_t>(begin_), std::move(tokens_), std::move(logprobs_),
                      std::move(versions_));
  }

 private:
  void SetVersions(const common::v1::Piece& piece) {
    auto next = versions_.begin() + static_cast<ptrdiff_t>(piece.at() - begin_);
    const auto end = next + static_cast<ptrdiff_t>(piece.count());
    for (const common::v1::VersionRun& run : piece.runs()) {
      const auto count = std::min<ptrdiff_t>(end - next, static_cast<ptrdiff_t>(run.count()));
      std::fill(next, next + count, rpc::FromProto(run.version()));
      next += count;
    }
  }

  const uint64_t begin_, end_;
  std::vector<int32_t> tokens_;
  std::vector<float> logprobs_;
  std::vector<PolicyVersion> versions_;
  std::vector<uint8_t> arrived_;  // By position: which of kTokens and kLogprobs have arrived.
};

}  // namespace

absl::StatusOr<Trajectory> ReadPrefix(QueueClient* queue, const common::v1::TrajectoryRef& owner,
                                      const std::string& lease, uint32_t prompt_tokens,
                                      uint64_t end) {
  common::v1::Want want;
  *want.mutable_owner() = owner;
  want.add_names("tokens");
  want.add_names("logprobs");
  want.set_from(prompt_tokens);
  want.set_to(end);

  PrefixBuffer buffer(prompt_tokens, end);
  SLUICE_RETURN_IF_ERROR(queue->Get(
      lease, {want},
      [&](const common::v1::Record& record, int field) { return buffer.Place(record, field); }));
  const uint64_t wanted = end - prompt_tokens;
  if (const uint64_t got = buffer.complete_positions(); got < wanted) {
    return Error(absl::StatusCode::kNotFound, "GONE",
                 absl::StrCat("the queue gave ", got, " tokens of a prefix of ", wanted));
  }
  return std::move(buffer).MakeTrajectory();
}

}  // namespace sluice::rollout
