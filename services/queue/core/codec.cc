#include "services/queue/core/codec.h"

#include "common/base/status.h"
#include "services/queue/core/fields.h"

namespace sluice::queue {

Encoded EncodeEvent(const Event& event, Payload payload) {
  Writer writer(payload);
  writer(event);
  return std::move(writer).Finish();
}

absl::StatusOr<Event> DecodeEvent(absl::string_view head, std::vector<PayloadRun> payload) {
  Reader reader(head, std::move(payload));
  Event event;
  reader(event);
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  return event;
}

}  // namespace sluice::queue
