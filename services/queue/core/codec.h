#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/queue/core/archive.h"
#include "services/queue/core/event.h"

// Events as bytes, for the log.
namespace sluice::queue {

// The format in which events and states are written. It rises when a written byte changes its
// meaning; a build refuses what was written with a higher number.
inline constexpr uint32_t kFormat = 1;
// The version of the state machine's logic. It rises when the same events would lead to another
// state: a log is replayed only by the logic that wrote it. Any logic of the same format can read a
// snapshot.
inline constexpr uint32_t kLogic = 1;

Encoded EncodeEvent(const Event& event, Payload payload);
// DATA_LOSS: not an event.
absl::StatusOr<Event> DecodeEvent(absl::string_view head, std::vector<PayloadRun> payload);

}  // namespace sluice::queue
