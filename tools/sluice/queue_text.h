#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace sluice::common::v1 {
class Ledger;
}  // namespace sluice::common::v1
namespace sluice::queue::v1 {
class PeekRow;
class StatsResponse;
}  // namespace sluice::queue::v1

// What the queue tells, as people read it. Pure.
namespace sluice::cli {

// "accepted 8 = durable 4 + applied 2 + live 1 + dropped 1", and what it is off by if it does not
// add up.
std::string LedgerLine(const common::v1::Ledger& ledger);
// accepted - (durable + applied + live + dropped): 0, always.
int64_t LedgerGap(const common::v1::Ledger& ledger);

// The counts that a person needs first, a line each.
std::string StatsText(const queue::v1::StatsResponse& stats);

// Text of token ids.
using Decode = std::function<std::string(const std::vector<int32_t>& ids)>;

// All that Peek told of a job, by question.
struct PeekAnswers {
  std::vector<queue::v1::PeekRow> groups, tasks, batches, prompts;
};
// A line a group, batch and prompt; tasks by state, those that failed a line each. `quarantined`,
// `dead_letter` rows included.
std::string PeekText(const PeekAnswers& answers);
// One group: its prompt, a line a member, its tasks. `decode` set: with texts, where the rows carry
// token ids.
std::string GroupText(const queue::v1::PeekRow& group, const std::vector<queue::v1::PeekRow>& tasks,
                      const Decode& decode);

// The group's short name, as `why` has it: "1:02" of 00000001..02. Other ids stay as they are.
std::string BriefGroup(const std::string& id);
// 16 bytes of a group named in full (32 hex digits) or short. Empty: neither.
std::string GroupIdOf(const std::string& name);

}  // namespace sluice::cli
