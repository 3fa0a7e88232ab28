#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::rollout::http {

// Who may ask, and for how much at once.
struct Tenant {
  std::string name;
  uint32_t most_answers = 0;  // Being sampled at once; 0: the server's limit alone.
};

// The bearer keys that a server takes. A secret file has a line for each: NAME KEY [MOST_ANSWERS];
// empty lines and those that begin with # are skipped. Several keys may name one tenant; the last
// limit counts.
//
// Immutable, so thread-safe. Keeps only digests of the keys.
class Keys {
 public:
  static constexpr size_t kShortest = 16;  // Bytes of a key.

  // INVALID_ARGUMENT: a line, by number; never its key. FAILED_PRECONDITION: others than the owner
  // may read the file, or it has no key.
  static absl::StatusOr<Keys> Load(const std::string& path);
  static absl::StatusOr<Keys> Parse(absl::string_view text, absl::string_view source);

  // Of a request's Authorization header. Null: none, or no such key. The answer takes as long
  // whichever key comes close.
  std::shared_ptr<const Tenant> Find(absl::string_view authorization) const;

 private:
  absl::flat_hash_map<std::string, std::shared_ptr<const Tenant>> by_digest_;
};

}  // namespace sluice::rollout::http
