#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"

namespace sluice::rpc {

// One channel for each address that a process calls. One that nobody has asked for for `keep` is
// closed when another is made, so that those to daemons that are gone do not pile up. A caller that
// still holds it keeps it open.
//
// Thread-safe.
class ChannelCache {
 public:
  // `peers` are the roles that the daemons at the other end may have. `clock` outlives this.
  explicit ChannelCache(absl::Span<const Role> peers, absl::Duration keep = absl::Minutes(10),
                        Clock* clock = Clock::Real())
      : peers_(peers.begin(), peers.end()), keep_(keep), clock_(clock) {}

  // The errors are those of Connect().
  absl::StatusOr<std::shared_ptr<Channel>> Find(const std::string& address)
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::shared_ptr<Channel> channel;
    absl::Duration used;  // When it was asked for last, on the monotonic clock.
  };

  const std::vector<Role> peers_;
  const absl::Duration keep_;
  Clock* const clock_;
  mutable Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // By address.
};

}  // namespace sluice::rpc
