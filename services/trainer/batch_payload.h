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
// of them: each prompt once, columns straight into their place. Every member is held against what
// the queue said of it when it cut the batch: its number of tokens, its trained tokens, the CRC of
// its tokens and log-probs. `experts` (layers x k) is what a token goes through in a mixture of
// experts, whose record is then read too; 0: none.
// DATA_LOSS: a member differs from its description. NOT_FOUND GONE: the queue has freed something
// of it. Else as QueueClient::Get.
absl::StatusOr<std::vector<Group>> FetchGroups(QueueClient& queue, const queue::v1::Batch& batch,
                                               int64_t experts);

// Tokens and mask of one row of supervised data.
struct EncodedRow {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // 1 on the answer.
};
using RowEncoder =
    std::function<absl::StatusOr<EncodedRow>(absl::string_view source, absl::string_view json)>;

// The groups of a slice whose rows ride in the batch.
absl::StatusOr<std::vector<Group>> EncodeGroups(const RowEncoder& encode,
                                                const queue::v1::Batch& batch);

}  // namespace sluice::trainer
