#include "services/trainer/checkpoint_writer.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"

namespace sluice::trainer {

CheckpointWriter::CheckpointWriter(CheckpointStore* store, QueueClient* queue, Clock* clock,
                                   std::string previous, Done done)
    : store_(store),
      queue_(queue),
      clock_(clock),
      done_(std::move(done)),
      previous_(std::move(previous)) {}

absl::Status CheckpointWriter::Write(Contents contents) {
  return worker_.Put([this, contents = std::move(contents)] { return WriteNow(contents); });
}

absl::Status CheckpointWriter::WriteNow(const Contents& contents) {
  const absl::Duration start = clock_->Monotonic();
  SLUICE_ASSIGN_OR_RETURN(const std::string path,
                          store_->Write({.model = contents.model.get(),
                                         .optimizer = &contents.optimizer,
                                         .state = contents.state,
                                         .cursor = contents.cursor,
                                         .lineage_tail = contents.lineage_tail,
                                         .previous = previous_}));
  previous_ = path;

  SLUICE_FAILPOINT_STATUS("trainer.durable.before");
  queue::v1::DurableRequest request;
  request.set_version(contents.state.version.number);
  request.set_checkpoint(path);
  request.set_hash(contents.state.ledger_hash);
  SLUICE_RETURN_IF_ERROR(queue_->Durable(std::move(request)).status());
  if (done_) done_(path, contents.state, absl::ToDoubleSeconds(clock_->Monotonic() - start));
  return absl::OkStatus();
}

}  // namespace sluice::trainer
