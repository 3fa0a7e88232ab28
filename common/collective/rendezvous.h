#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice {

// Where the ranks of a group exchange the addresses at which they reach each other. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits until some rank has set the key.
  // DEADLINE_EXCEEDED: none did within `timeout`.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
};

// The keys of another rendezvous that begin with a prefix, for a second group of the same ranks.
class PrefixedRendezvous : public Rendezvous {
 public:
  // `base` outlives this.
  PrefixedRendezvous(Rendezvous* base, std::string prefix)
      : base_(base), prefix_(std::move(prefix)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return base_->Set(prefix_ + key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    return base_->Get(prefix_ + key, timeout);
  }

 private:
  Rendezvous* const base_;
  const std::string prefix_;
};

// The rendezvous of ranks that are in one process, or that ask this one.
class LocalRendezvous : public Rendezvous {
 public:
  // All keys and values together may have `max_bytes`.
  explicit LocalRendezvous(size_t max_bytes = SIZE_MAX) : max_bytes_(max_bytes) {}

  // RESOURCE_EXHAUSTED: there is no room for the value.
  absl::Status Set(const std::string& key, const std::string& value) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all waits, now and later, with CANCELLED.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const size_t max_bytes_;

  Mutex mu_;
  CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // Of the keys and values.
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
