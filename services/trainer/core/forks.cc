#include "services/trainer/core/forks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::trainer {
namespace {

using nlohmann::ordered_json;

ordered_json ToJson(const Fork& fork) {
  return {{"incarnation", fork.incarnation},
          {"version", fork.version},
          {"withdrawn_incarnation", fork.withdrawn.incarnation},
          {"withdrawn_version", fork.withdrawn.number},
          {"cause", fork.cause}};
}

}  // namespace

absl::StatusOr<Forks> Forks::Read(const std::string& dir) {
  Forks forks(absl::StrCat(dir, "/forks.json"));
  const absl::StatusOr<std::string> text = ReadFile(forks.path_);
  if (absl::IsNotFound(text.status())) return forks;
  SLUICE_RETURN_IF_ERROR(text.status());
  try {
    for (const ordered_json& entry : ordered_json::parse(*text)) {
      forks.forks_.push_back({.incarnation = entry.at("incarnation").get<int64_t>(),
                              .version = entry.at("version").get<int64_t>(),
                              .withdrawn = {entry.at("withdrawn_incarnation").get<int64_t>(),
                                            entry.at("withdrawn_version").get<int64_t>()},
                              .cause = entry.at("cause").get<std::string>()});
    }
  } catch (const ordered_json::exception& error) {
    return absl::DataLossError(absl::StrCat(
        forks.path_, ", which says which checkpoints were given up, cannot be read: ", error.what(),
        "; remove the checkpoints that must not be used, and then this file"));
  }
  return forks;
}

absl::Status Forks::Add(Fork fork) {
  ordered_json all = ordered_json::array();
  for (const Fork& each : forks_) all.push_back(ToJson(each));
  all.push_back(ToJson(fork));
  SLUICE_RETURN_IF_ERROR(WriteFileAtomic(path_, absl::StrCat(all.dump(2), "\n")));
  forks_.push_back(std::move(fork));
  return absl::OkStatus();
}

bool Forks::Holds(const PolicyVersion& version) const {
  return std::none_of(forks_.begin(), forks_.end(), [&](const Fork& fork) {
    return version.incarnation <= fork.incarnation && version.number > fork.version;
  });
}

}  // namespace sluice::trainer
