#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sluice/job/v1/spec.pb.h"

// The keys of a job file that `sluice job set` knows.
namespace sluice::controller {

struct LiveKey {
  const char* key;
  // Why the key of a submitted job cannot be changed, though people may expect that it can. Null:
  // it is changed at once. The keys without a refusal are those marked `live` in spec.proto.
  const char* refusal = nullptr;
};
const std::vector<LiveKey>& LiveKeys();

// Returns the spec with the new values, which are given by key as YAML text. `changes` becomes a
// text for people: "limits.wall: 1h -> 2h". Whether the values are allowed is checked later, on the
// spec.
// INVALID_ARGUMENT SET: there is no such key, the value is none of its type, or the key cannot be
// changed; the message says why.
absl::StatusOr<job::v1::JobSpec> SetLiveKeys(const job::v1::JobSpec& spec,
                                             const std::map<std::string, std::string>& values,
                                             std::string* changes);

}  // namespace sluice::controller
