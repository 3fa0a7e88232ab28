#include "common/weights/relay_chain.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"

namespace sluice {
namespace {

constexpr size_t kMostOfAStar = 2;               // Rollouts.
constexpr uint64_t kSmallestOfAChain = 1 << 20;  // Bytes of the model.

// Pieces from which the median rate is computed, and the fewest for which it is known.
constexpr size_t kPieces = 64, kFewestPieces = 8;
// A holder is judged by its newest pieces, if it has sent as many, and for as long.
constexpr size_t kJudgedPieces = 4;
constexpr absl::Duration kJudgedTime = absl::Seconds(1);

// Below this time per piece, rates say more about the scheduler of this host than about the holder.
constexpr absl::Duration kShortest = absl::Microseconds(100);

double RateOf(uint64_t bytes, absl::Duration took) {
  return static_cast<double>(bytes) / absl::ToDoubleSeconds(std::max(took, kShortest));
}

uint64_t ScoreOf(absl::string_view key, const std::string& id) {
  const std::string digest = Sha256(absl::StrCat(key, "\n", id));
  uint64_t score = 0;
  std::memcpy(&score, digest.data(), sizeof(score));
  return score;
}

}  // namespace

bool UsesChain(FanOut fan_out, size_t rollouts, uint64_t model_bytes) {
  if (fan_out == FanOut::kStar) return false;
  return fan_out == FanOut::kChain || (rollouts > kMostOfAStar && model_bytes >= kSmallestOfAChain);
}

std::vector<RelayMember> SortIntoChain(std::vector<RelayMember> members, absl::string_view key) {
  std::sort(members.begin(), members.end(), [&](const RelayMember& a, const RelayMember& b) {
    return std::make_pair(ScoreOf(key, a.id), a.id) > std::make_pair(ScoreOf(key, b.id), b.id);
  });
  return members;
}

std::vector<std::string> ListHolders(absl::Span<const RelayMember> chain, absl::string_view self,
                                     const std::function<bool(const std::string& id)>& is_avoided) {
  const auto own = std::find_if(chain.begin(), chain.end(),
                                [&](const RelayMember& member) { return member.id == self; });
  // One that is not in the list yet stands at its end.
  std::vector<std::string> before, after, avoided;
  for (auto it = own; it != chain.begin();) {
    --it;
    (is_avoided(it->id) ? avoided : before).push_back(it->id);
  }
  for (auto it = own == chain.end() ? own : own + 1; it != chain.end(); ++it)
    (is_avoided(it->id) ? avoided : after).push_back(it->id);

  std::vector<std::string> holders = std::move(before);
  const size_t parents = std::min<size_t>(2, holders.size());
  holders.insert(holders.begin() + static_cast<std::ptrdiff_t>(parents), std::string(kOriginId));
  holders.insert(holders.end(), after.begin(), after.end());
  holders.insert(holders.end(), avoided.begin(), avoided.end());
  return holders;
}

absl::string_view HolderFaultName(HolderFault fault) {
  switch (fault) {
    case HolderFault::kGone: return "gone";
    case HolderFault::kSilent: return "silent";
    case HolderFault::kSlow: return "slow";
    case HolderFault::kStarved: return "starved";
    case HolderFault::kLied: return "lied";
  }
  return "unknown";
}

void HolderHistory::AddPiece(const std::string& holder, uint64_t bytes, absl::Duration took) {
  pieces_.push_back({holder, bytes, took});
  if (pieces_.size() > kPieces) pieces_.pop_front();
}

double HolderHistory::MedianRate() const {
  if (pieces_.size() < kFewestPieces) return 0;
  std::vector<double> rates;
  for (const Piece& piece : pieces_) rates.push_back(RateOf(piece.bytes, piece.took));
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

absl::Duration HolderHistory::SilenceLimit(uint64_t bytes) const {
  const double rate = MedianRate();
  if (rate <= 0) return limits_.silent;
  return std::max(limits_.silent, 4 * absl::Seconds(static_cast<double>(bytes) / rate));
}

bool HolderHistory::IsSlow(const std::string& holder) const {
  const double usual = MedianRate();
  if (usual <= 0) return false;
  uint64_t bytes = 0;
  absl::Duration took;
  size_t pieces = 0;
  for (auto it = pieces_.rbegin(); it != pieces_.rend(); ++it) {
    if (it->holder != holder) continue;
    bytes += it->bytes, took += it->took, ++pieces;
    if (pieces < kJudgedPieces || took < kJudgedTime) continue;
    return RateOf(bytes, took) < usual / 2;
  }
  return false;  // It has sent too little to be judged.
}

void HolderHistory::AddFault(const std::string& holder, HolderFault fault, absl::Duration now) {
  // One that starves is not to blame: it waits for another.
  if (fault == HolderFault::kStarved || holder == kOriginId) return;
  avoid_until_[holder] = now + (fault == HolderFault::kLied ? limits_.distrust : limits_.avoid);
}

bool HolderHistory::IsAvoided(const std::string& holder, absl::Duration now) const {
  const auto it = avoid_until_.find(holder);
  return it != avoid_until_.end() && now < it->second;
}

}  // namespace sluice
