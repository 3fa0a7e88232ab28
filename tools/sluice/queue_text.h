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

// Formats answers of the queue for people. These functions have no side effects.
namespace sluice::cli {

// For example "accepted 8 = durable 4 + applied 2 + live 1 + dropped 1". If the sum is wrong, the
// difference follows.
std::string LedgerLine(const common::v1::Ledger& ledger);
// Returns accepted - (durable + applied + live + dropped), which should always be 0.
int64_t LedgerGap(const common::v1::Ledger& ledger);

// Formats the most important counts, one per line.
std::string StatsText(const queue::v1::StatsResponse& stats);

// Converts token ids to text.
using Decode = std::function<std::string(const std::vector<int32_t>& ids)>;

// All rows that Peek returned for a job, by kind.
struct PeekAnswers {
  std::vector<queue::v1::PeekRow> groups, tasks, batches, prompts;
};
// Formats one line per group, batch and prompt, the number of tasks by state, and a line for each
// task that has failed (dead letters too). The prompts are those in quarantine and those that are
// to be drawn again. `output` is table; or wide, which also has the full ids of the groups and a
// line for each task; or name, which is the groups' short ids alone.
std::string PeekText(const PeekAnswers& answers, const std::string& output);
// Formats one group: its prompt, a line per member, its tasks. If `decode` is set, the texts of the
// prompt and of the answers follow; the rows then must carry token ids.
std::string GroupText(const queue::v1::PeekRow& group, const std::vector<queue::v1::PeekRow>& tasks,
                      const Decode& decode);

// Shortens a group id as `why` shows it: 00000001..02 becomes "1:02". Other ids are returned
// unchanged.
std::string BriefGroup(const std::string& id);
// Returns the 16 bytes of a group id, given in full (32 hex digits) or in the short form; "" if
// `name` is neither.
std::string GroupIdOf(const std::string& name);

}  // namespace sluice::cli
