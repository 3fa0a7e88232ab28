#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::rpc {

// Of several controllers one leads, and the others refuse all calls with the reason kStandby and
// the leader's address, if they know it.
inline constexpr char kStandby[] = "STANDBY";

// Whom to ask, where one of several controllers leads. It begins with the first one of a list, and
// goes on to another whenever a call fails: to the leader that a standby names if that one is in
// the list, else to the next of the list. A leader that is not in the list is asked once each one
// of the list has failed, because its address may be one that only other hosts can reach.
//
// Not thread-safe.
class LeaderSearch {
 public:
  explicit LeaderSearch(std::vector<std::string> addresses);  // At least one.

  const std::string& current() const { return current_; }
  // The one of the list that named current() as the leader. Empty if current() is in the list.
  const std::string& named_by() const { return named_by_; }

  // A call to `address` has failed with `why`. Does nothing if `address` is not current() any more.
  // Returns whether current() is another one than `address` now.
  bool OnFailed(std::string address, const absl::Status& why);

 private:
  const std::vector<std::string> addresses_;
  size_t at_ = 0;  // Of the list: the one asked last.
  std::string current_, named_by_;
  size_t failed_ = 0;  // Of the list, since a leader that is not in it was asked.
};

// Splits "HOST:PORT,HOST:PORT,..".
std::vector<std::string> SplitAddresses(absl::string_view text);

}  // namespace sluice::rpc
