#include "tools/sluice/weights_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/rpc/convert.h"
#include "common/weights/fetcher.h"
#include "common/weights/weight_path.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/weights/v1/weights.pb.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using weights::v1::ListResponse;
using weights::v1::Manifest;
using weights::v1::VersionNode;

std::string VersionOf(const common::v1::PolicyVersion& version) {
  return rpc::FromProto(version).str();
}

std::string ShortHex(const std::string& bytes) { return ToHex(bytes.substr(0, 6)); }

std::string SizeText(uint64_t bytes) {
  if (bytes < 10'000) return absl::StrCat(bytes, " B");
  if (bytes < 10'000'000) return absl::StrFormat("%.1f kB", static_cast<double>(bytes) / 1e3);
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

std::string KindText(Manifest::Kind kind) {
  return kind == Manifest::KIND_FULL ? "full" : kind == Manifest::KIND_DELTA ? "delta" : "other";
}

// Who keeps a manifest from being freed, apart from being among the newest.
std::string HoldersText(const ListResponse& list, const std::string& manifest) {
  std::vector<std::string> holders;
  for (const weights::v1::HeldLease& lease : list.leases()) {
    const auto& held = lease.manifests();
    if (std::find(held.begin(), held.end(), manifest) == held.end()) continue;
    holders.push_back(lease.pin() ? "pinned" : lease.holder());
  }
  return holders.empty() ? "-" : absl::StrJoin(holders, ", ");
}

std::string PhaseText(weights::v1::ReplicaPhase phase) {
  switch (phase) {
    case weights::v1::REPLICA_PHASE_FETCHING: return "fetching";
    case weights::v1::REPLICA_PHASE_STAGED: return "staged";
    case weights::v1::REPLICA_PHASE_ACTIVE: return "active";
    case weights::v1::REPLICA_PHASE_REFUSED: return "refused";
    default: return "-";
  }
}

// Where a replica fetches, or fetched last.
std::string ParentText(const std::string& parent) { return parent.empty() ? "trainer" : parent; }

std::string SecondsAt(const weights::v1::Replica& replica, const char* part) {
  const auto it = replica.times().find(part);
  return it == replica.times().end() ? "-" : absl::StrFormat("%.3f s", it->second);
}

std::string TrialText(const weights::v1::Trial& trial) {
  return absl::StrFormat("version %s is on trial at %s since %.0f s: %s",
                         VersionOf(trial.version()),
                         trial.replica().empty() ? "no rollout yet" : trial.replica(),
                         absl::ToDoubleSeconds(rpc::FromProto(trial.waited())), trial.text());
}

uint64_t BytesOf(const std::vector<WeightStep>& path) {
  uint64_t bytes = 0;
  for (const WeightStep& step : path) bytes += step.edge.bytes;
  return bytes;
}

}  // namespace

std::string WeightsText(const ListResponse& list) {
  std::vector<std::vector<std::string>> versions = {
      {"VERSION", "KIND", "BYTES", "MANIFEST", "STATE", "STANDING", "HELD BY"}};
  for (const VersionNode& node : list.nodes()) {
    versions.push_back({VersionOf(node.version()), KindText(node.kind()), SizeText(node.bytes()),
                        ShortHex(node.manifest()), ShortHex(node.state()),
                        node.candidate() ? "on trial" : "promoted",
                        HoldersText(list, node.manifest())});
  }
  std::vector<std::vector<std::string>> replicas = {
      {"REPLICA", "VERSION", "PHASE", "PARENT", "BY", "FETCH", "PAUSE", "AGE", "CAUSE"}};
  for (const weights::v1::Replica& replica : list.replicas()) {
    const double age = absl::ToDoubleSeconds(rpc::FromProto(replica.age()));
    replicas.push_back(
        {replica.replica(), VersionOf(replica.version()), PhaseText(replica.phase()),
         ParentText(replica.parent()), replica.transport().empty() ? "-" : replica.transport(),
         SecondsAt(replica, "fetch"), SecondsAt(replica, "pause"), absl::StrFormat("%.0f s", age),
         replica.cause().empty() ? "-" : replica.cause()});
  }
  std::string text = absl::StrCat(Table(versions), "\n", Table(replicas));
  if (list.has_trial()) absl::StrAppend(&text, "\n", TrialText(list.trial()), "\n");
  for (const weights::v1::Withdrawn& withdrawn : list.withdrawn()) {
    absl::StrAppend(&text, "\nversion ", VersionOf(withdrawn.version()),
                    " was given up, and the run went on from version ", withdrawn.from(), ": ",
                    withdrawn.cause(), "\n");
  }
  return text;
}

std::string ManifestText(const Manifest& manifest, const std::string& id) {
  uint64_t bytes = 0;
  for (const weights::v1::Chunk& chunk : manifest.chunks()) bytes += chunk.wire_bytes();
  std::vector<std::vector<std::string>> rows = {
      {"FIELD", "VALUE"},
      {"version", PolicyVersion{manifest.incarnation(), manifest.version()}.str()},
      {"kind", KindText(manifest.kind())},
      {"manifest", ToHex(id)},
      {"state", ToHex(manifest.state())},
      {"base", manifest.base().empty() ? "nothing" : ToHex(manifest.base())},
      {"layout", ToHex(manifest.layout_id())},
      {"tensors", absl::StrCat(manifest.tensor_states().size() / 16)},
      {"chunks", absl::StrCat(manifest.chunks_size(), ", ", SizeText(bytes))},
      {"created", absl::FormatTime(rpc::FromProto(manifest.created()), absl::UTCTimeZone())}};
  if (manifest.kind() == Manifest::KIND_DELTA)
    rows.push_back({"changed", absl::StrCat(manifest.changed(), " elements")});
  return Table(rows);
}

std::string VerifyText(const job::v1::InspectResponse& response) {
  std::vector<std::vector<std::string>> rows = {{"ROLLOUT", "VERSION", "FOUND", "RESULT"}};
  for (const job::v1::RolloutVerified& rollout : response.verified()) {
    if (!rollout.error().empty()) {
      rows.push_back({rollout.daemon(), "-", "-", absl::StrCat("no answer: ", rollout.error())});
      continue;
    }
    const weights::v1::VerifyResponse& answer = rollout.answer();
    rows.push_back({rollout.daemon(), VersionOf(answer.version()), ToHex(answer.state()),
                    answer.equal()
                        ? "equal"
                        : absl::StrCat("DIFFERS, wanted ", ToHex(answer.expected()),
                                       "; tensors: ", absl::StrJoin(answer.tensors(), ", "))});
  }
  return Table(rows);
}

bool AllVerified(const job::v1::InspectResponse& response) {
  return std::all_of(response.verified().begin(), response.verified().end(),
                     [](const job::v1::RolloutVerified& rollout) {
                       return rollout.error().empty() && rollout.answer().equal();
                     });
}

absl::StatusOr<VersionNode> FindVersion(const ListResponse& list, const std::string& version) {
  const VersionNode* found = nullptr;
  std::vector<std::string> kept;
  for (const VersionNode& node : list.nodes()) {
    const std::string name = VersionOf(node.version());
    if (kept.empty() || kept.back() != name) kept.push_back(name);
    const bool is_it =
        version == "latest" || version == name || version == absl::StrCat(node.version().number());
    if (is_it) found = &node;  // Nodes rise, and a delta comes after the whole of its version.
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(
      absl::StrCat("version ", version, " is not kept; kept are: ", absl::StrJoin(kept, ", ")));
}

absl::StatusOr<weights::v1::Replica> FindReplica(const ListResponse& list,
                                                 const std::string& replica) {
  std::vector<std::string> known;
  for (const weights::v1::Replica& other : list.replicas()) {
    if (other.replica() == replica) return other;
    known.push_back(other.replica());
  }
  return absl::NotFoundError(absl::StrCat(
      "replica ", replica, " has reported nothing; known are: ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<Json> PathJson(const ListResponse& list,
                              const std::optional<weights::v1::Replica>& from) {
  const auto edges = WeightFetcher::ReadEdges(list);
  if (!edges.ok()) return edges.status();
  const auto latest = FindVersion(list, "latest");
  if (!latest.ok()) return latest.status();
  const auto target = Fingerprint::FromBytes(latest->state());
  if (!target.ok()) return target.status();
  std::optional<Fingerprint> held;
  if (from.has_value()) {
    const auto state = Fingerprint::FromBytes(from->state());
    if (!state.ok()) return state.status();
    held = *state;
  }

  const std::vector<WeightStep> path = FindWeightPath(*edges, held, *target),
                                whole = FindWeightPath(*edges, std::nullopt, *target);
  const bool fetches = from.has_value() && !from->transport().empty();
  Json out = {{"replica", from.has_value() ? Json(from->replica()) : Json(nullptr)},
              {"parent", fetches ? Json(ParentText(from->parent())) : Json(nullptr)},
              {"transport", fetches ? Json(from->transport()) : Json(nullptr)},
              {"transport_why", fetches ? Json(from->transport_why()) : Json(nullptr)},
              {"held", held.has_value() ? Json(held->hex()) : Json(nullptr)},
              {"latest", VersionOf(latest->version())},
              {"state", target->hex()},
              {"bytes", BytesOf(path)},
              {"whole_bytes", BytesOf(whole)},
              {"edges", Json::array()}};
  for (const WeightStep& step : path) {
    const bool full = !step.edge.base.has_value();
    out["edges"].push_back(
        {{"version", step.edge.version.version.str()},
         {"kind", full ? "full" : "delta"},
         {"backward", step.backward},
         {"manifest", ToHex(step.edge.manifest)},
         {"from", full            ? Json(nullptr)
                  : step.backward ? Json(step.edge.version.state.hex())
                                  : Json(step.edge.base->hex())},
         {"to", step.backward ? step.edge.base->hex() : step.edge.version.state.hex()},
         {"bytes", step.edge.bytes}});
  }
  return out;
}

std::string PathText(const Json& path) {
  const std::string who = path["replica"].is_null() ? "a rollout that holds nothing"
                                                    : path["replica"].get<std::string>();
  const std::string latest = path["latest"];
  const std::string by =
      path["transport"].is_null()
          ? ""
          : absl::StrCat(who, " fetches from ", path["parent"].get<std::string>(), " by ",
                         path["transport"].get<std::string>(), ": ",
                         path["transport_why"].get<std::string>(), "\n");
  if (path["held"] == path["state"])
    return absl::StrCat(who, " holds the weights of version ", latest, "\n", by);
  if (path["edges"].empty()) return absl::StrCat("no way leads to version ", latest, "\n", by);

  std::vector<std::vector<std::string>> rows = {{"STEP", "VERSION", "TO STATE", "BYTES"}};
  for (const Json& edge : path["edges"]) {
    const bool backward = edge["backward"];
    rows.push_back({edge["kind"] == "full" ? "load all"
                    : backward             ? "go back"
                                           : "apply delta",
                    edge["version"], edge["to"], SizeText(edge["bytes"].get<uint64_t>())});
  }
  const uint64_t bytes = path["bytes"], whole = path["whole_bytes"];
  const bool from_nothing = path["edges"][0]["kind"] == "full";
  return absl::StrCat(Table(rows), who, " needs ", SizeText(bytes), " for version ", latest, ": ",
                      path["held"].is_null() ? "the cheapest way from nothing"
                      : from_nothing ? "no cheaper way leads there from the weights that it holds"
                                     : absl::StrCat("all weights would take ", SizeText(whole)),
                      "\n", by);
}

}  // namespace sluice::cli
