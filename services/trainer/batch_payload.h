#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/trainer/core/experience.h"

namespace sluice {
class QueueClient;
namespace queue::v1 {
class Batch;
}  // namespace queue::v1
}  // namespace sluice

namespace sluice::trainer {

// Reads the tokens of a slice of a batch from the queue, under the batch's lease, and makes groups
// of them. Each prompt is read once, and the columns are written directly to their place. Each
// member is checked against the queue's description of the batch: its number of tokens, its number
// of trained tokens, and the CRC of its tokens and log-probs. `experts` is layers x k in a
// mixture-of-experts model, whose recorded experts are then read too; else 0. `rewards`: members
// have rewards.
// DATA_LOSS: a member differs from its description.
// NOT_FOUND GONE: the queue has freed a part of the data.
// Other errors are those of QueueClient::Get().
absl::StatusOr<std::vector<Group>> FetchGroups(QueueClient& queue, const queue::v1::Batch& batch,
                                               int64_t experts, bool rewards = true);

// The tokens and the mask of one answer of a row, with its prompt.
struct EncodedAnswer {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // 1 on the answer.
};
// Returns the answers of a row, at least one.
using RowEncoder = std::function<absl::StatusOr<std::vector<EncodedAnswer>>(
    absl::string_view source, absl::string_view json)>;

// Makes the groups of a slice of rows (kinds sft and dpo), which are part of the batch. A group has
// a member for each answer of its row. Errors are those of `encode`, with the row's index and
// source. With `skip_bad_rows` a row that cannot be encoded is logged, and its group has one member
// without tokens.
absl::StatusOr<std::vector<Group>> EncodeGroups(const RowEncoder& encode, bool skip_bad_rows,
                                                const queue::v1::Batch& batch);

}  // namespace sluice::trainer
