#include "common/rpc/leader_search.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace sluice::rpc {

LeaderSearch::LeaderSearch(std::vector<std::string> addresses)
    : addresses_(std::move(addresses)), current_(addresses_.at(0)) {}

// `address` is a copy, because a caller may well give current(), which changes here.
bool LeaderSearch::OnFailed(std::string address, const absl::Status& why) {
  if (address != current_) return true;

  const ErrorDetail detail = DetailOf(why);
  const std::string leader = detail.reason == kStandby ? detail.current : "";
  const auto listed = std::find(addresses_.begin(), addresses_.end(), leader);
  if (named_by_.empty()) ++failed_;

  if (!leader.empty() && leader != address && listed == addresses_.end() &&
      failed_ >= addresses_.size()) {
    failed_ = 0;
    named_by_ = current_;
    current_ = leader;
    return true;
  }

  const bool go_to_leader = listed != addresses_.end() && leader != address;
  at_ = go_to_leader ? static_cast<size_t>(listed - addresses_.begin())
                     : (at_ + 1) % addresses_.size();
  current_ = addresses_[at_];
  named_by_.clear();
  return current_ != address;
}

std::vector<std::string> SplitAddresses(absl::string_view text) {
  return absl::StrSplit(text, ',', absl::SkipWhitespace());
}

}  // namespace sluice::rpc
