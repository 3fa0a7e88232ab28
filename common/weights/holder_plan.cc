#include "common/weights/holder_plan.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/weights/object_fetcher.h"

namespace sluice {
namespace {

std::string NameOf(const std::string& id) { return id == kOriginId ? "the trainer" : id; }

// The one whose memory is read. Nullopt: none, and *why_not says why.
std::optional<std::string> FindMemory(const HolderFacts& facts, std::string* why_not) {
  if (!facts.shared_memory) {
    *why_not = "weights.shared_memory is false";
    return std::nullopt;
  }
  *why_not = "no rollout before this one, and no trainer, is known";
  for (const std::string& id : facts.upstream) {
    if (facts.is_avoided(HolderKey(id, kShmCaps))) {
      *why_not = absl::StrCat("the memory of ", NameOf(id), " failed a short while ago");
      continue;
    }
    const absl::Status reached = facts.reach_memory(id);
    if (reached.ok()) return id;
    *why_not =
        absl::IsUnavailable(reached)
            ? std::string("no trainer or rollout before this one shares memory with this host")
            : absl::StrCat("the memory of ", NameOf(id), " cannot be used (", reached.message(),
                           ")");
  }
  return std::nullopt;
}

// The one whose memory is read over UCX. Nullopt: none, and *why_not goes on to say why.
std::optional<std::string> FindUcx(const HolderFacts& facts, std::string* why_not) {
  if (!facts.ucx.has_value()) return std::nullopt;
  if (!facts.ucx->ok()) {
    absl::StrAppend(why_not, ", and weights.ucx cannot be used (", facts.ucx->message(), ")");
    return std::nullopt;
  }
  for (const std::string& id : facts.holders) {
    const bool is_before =
        std::find(facts.upstream.begin(), facts.upstream.end(), id) != facts.upstream.end();
    if (!is_before || facts.is_avoided(id)) continue;
    if (!facts.is_avoided(HolderKey(id, kUcxCaps))) return id;
    absl::StrAppend(why_not, ", and UCX to ", NameOf(id), " failed a short while ago");
  }
  return std::nullopt;
}

}  // namespace

std::vector<PlannedHolder> PlanHolders(const HolderFacts& facts) {
  std::vector<PlannedHolder> plan;
  std::string why_not;  // Nothing cheaper is used.
  const std::string origin(kOriginId);
  if (const auto memory = FindMemory(facts, &why_not); memory.has_value()) {
    plan.push_back({*memory, &kShmCaps,
                    absl::StrCat(NameOf(*memory), " is on this host and shares its memory")});
    why_not = "what is read from shared memory first was not all there";
  } else if (const auto remote = FindUcx(facts, &why_not); remote.has_value()) {
    plan.push_back({*remote, &kUcxCaps, absl::StrCat("weights.ucx is true, and ", why_not)});
    why_not = "what is read over UCX first was not all there";
  } else if (facts.broadcast && facts.is_avoided(HolderKey(origin, kC10dCaps))) {
    absl::StrAppend(&why_not, ", and a broadcast failed a short while ago");
  } else if (facts.broadcast) {
    plan.push_back({origin, &kC10dCaps,
                    absl::StrCat("weights.broadcast is set, several rollouts wanted the same whole "
                                 "version, and ",
                                 why_not)});
    why_not = "a broadcast brings only a whole version that several rollouts want at once";
  }

  const std::string folder(kFolderId);
  const bool folder_failed = facts.folder && facts.is_avoided(HolderKey(folder, kFileCaps));
  const PlannedHolder file = {folder, &kFileCaps,
                              absl::StrCat("weights.dir is set, and ", why_not)};
  if (facts.folder && !folder_failed) {
    plan.push_back(file);
    why_not = "what is read from weights.dir first was not all there";
  } else {
    absl::StrAppend(&why_not, folder_failed ? ", and weights.dir failed a short while ago"
                                            : ", and weights.dir is not set");
  }

  for (const std::string& id : facts.holders) plan.push_back({id, &kGrpcCaps, why_not});
  // The last holder has all the time that it needs, so a trainer must stay the last.
  if (folder_failed) plan.insert(plan.end() - (facts.holders.empty() ? 0 : 1), file);
  return plan;
}

}  // namespace sluice
