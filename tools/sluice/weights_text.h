#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::job::v1 {
class InspectResponse;
}  // namespace sluice::job::v1
namespace sluice::weights::v1 {
class ListResponse;
class Manifest;
class Replica;
class VersionNode;
}  // namespace sluice::weights::v1

// Formats what daemons say of the weights of a job for people. These functions have no side
// effects.
namespace sluice::cli {

// A line for each kept version, and one for each replica.
std::string WeightsText(const weights::v1::ListResponse& list);
std::string ManifestText(const weights::v1::Manifest& manifest, const std::string& id);
// A line for each rollout: what its engine holds, and whether it is what was published.
std::string VerifyText(const job::v1::InspectResponse& response);
// Whether each rollout answered, and holds what was published.
bool AllVerified(const job::v1::InspectResponse& response);

// The manifest of a version, given as "2:17" (incarnation and number), "17" (of the newest
// incarnation) or "latest". Of a version that is kept whole and as a delta it is the delta's.
// NOT_FOUND: no such version is kept; the message names those that are.
absl::StatusOr<weights::v1::VersionNode> FindVersion(const weights::v1::ListResponse& list,
                                                     const std::string& version);
// The replica of this name.
// NOT_FOUND: it has reported nothing; the message names those that have.
absl::StatusOr<weights::v1::Replica> FindReplica(const weights::v1::ListResponse& list,
                                                 const std::string& replica);

// The way to the latest version from what a replica holds; without one, from nothing. It is the
// one that the replica would take: `edges` in order, `bytes` of all, and `whole_bytes`, those of
// the cheapest way from nothing. `parent`, `transport` and `transport_why` say from whom it
// fetches, how, and why so.
absl::StatusOr<nlohmann::ordered_json> PathJson(const weights::v1::ListResponse& list,
                                                const std::optional<weights::v1::Replica>& from);
std::string PathText(const nlohmann::ordered_json& path);

}  // namespace sluice::cli
