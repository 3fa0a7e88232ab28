#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::job::v1 {
class InspectResponse;
class ReloadRewardsResponse;
}  // namespace sluice::job::v1
namespace sluice::queue::v1 {
class PeekRow;
}  // namespace sluice::queue::v1

// Formats what daemons say of the rewards of a job. Each answer is made JSON first, which the data
// formats print, and the text for people is made of that. These functions have no side effects.
namespace sluice::cli {

// The number of a generation of the rewards, given as its eight hex digits.
// INVALID_ARGUMENT: `name` is something else.
absl::StatusOr<uint32_t> ParseGeneration(const std::string& name);

// A list with an object for each dead letter.
nlohmann::ordered_json DeadJson(const std::vector<queue::v1::PeekRow>& letters);
// A line for each dead letter, and how often there is each cause.
std::string DeadText(const nlohmann::ordered_json& dead);

// The dead letters that a person means: those of one of `ids` if there are any, each the id of a
// letter or of its group, whose cause contains `cause`.
// NOT_FOUND: there is none for one of the ids, or none with this cause.
absl::StatusOr<nlohmann::ordered_json> ChooseDead(const nlohmann::ordered_json& dead,
                                                  const std::vector<std::string>& ids,
                                                  const std::string& cause);

// Lists of the `generations`, in the order of the steps that trained on them, and of the versions
// of each of the `rewards`.
nlohmann::ordered_json LineageJson(const std::vector<queue::v1::PeekRow>& generations);
// `output` is table; or name, which is the generations alone.
std::string LineageText(const nlohmann::ordered_json& lineage, const std::string& output);

// What each reward daemon has of a job, with candidates compared over all daemons.
nlohmann::ordered_json RewardsJson(const job::v1::InspectResponse& response);
std::string RewardsText(const nlohmann::ordered_json& rewards);
// A line for each candidate of these rewards: "candidate NEW of OLD: ..". Empty if there is none.
std::string ShadowsText(const nlohmann::ordered_json& rewards);

nlohmann::ordered_json ReloadJson(const job::v1::ReloadRewardsResponse& response);
std::string ReloadText(const nlohmann::ordered_json& reloaded);
// Whether no daemon failed to answer or to load a version.
bool AllLoaded(const nlohmann::ordered_json& reloaded);

}  // namespace sluice::cli
