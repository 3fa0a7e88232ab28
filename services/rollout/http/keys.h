#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::rollout::http {

// A user of the API, and how many answers it may have at once.
struct Tenant {
  std::string name;
  uint32_t most_answers = 0;  // Answers being sampled at once; 0: only the server's limit holds.
};

// The bearer keys that a server accepts. The secret file has one line for each: NAME KEY
// [MOST_ANSWERS]. Empty lines and lines that begin with # are ignored. Several keys may have the
// same tenant's NAME; the last limit counts.
//
// Immutable, so thread-safe. Only digests of the keys are kept.
class Keys {
 public:
  static constexpr size_t kShortest = 16;  // Least bytes of a key.

  // INVALID_ARGUMENT: a line is wrong; the message has its number, but never its key.
  // FAILED_PRECONDITION: others than the owner and the group may read the file, or it has no key.
  static absl::StatusOr<Keys> Load(const std::string& path);
  static absl::StatusOr<Keys> Parse(absl::string_view text, absl::string_view source);

  // Returns the tenant of a request's Authorization header. Null if there is no key, or an unknown
  // one. The time that this takes does not depend on how close a wrong key is to a right one.
  std::shared_ptr<const Tenant> Find(absl::string_view authorization) const;

 private:
  absl::flat_hash_map<std::string, std::shared_ptr<const Tenant>> by_digest_;
};

}  // namespace sluice::rollout::http
