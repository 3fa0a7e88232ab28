#include "common/rpc/channel_cache.h"

#include "common/base/status.h"

namespace sluice::rpc {

absl::StatusOr<std::shared_ptr<Channel>> ChannelCache::Find(const std::string& address) {
  const absl::Duration now = clock_->Monotonic();
  MutexLock lock(&mu_);
  if (const auto it = entries_.find(address); it != entries_.end()) {
    it->second.used = now;
    return it->second.channel;
  }
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<Channel> channel, Connect(address, peers_));
  std::erase_if(entries_, [&](const auto& entry) { return now - entry.second.used > keep_; });
  entries_[address] = {channel, now};
  return channel;
}

size_t ChannelCache::size() const {
  MutexLock lock(&mu_);
  return entries_.size();
}

}  // namespace sluice::rpc
