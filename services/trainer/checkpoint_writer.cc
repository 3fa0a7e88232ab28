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

absl::Status CheckpointWriter::Write(CheckpointContents contents) {
  return worker_.Put(
      [this, contents = std::move(contents)]() mutable { return WriteNow(std::move(contents)); });
}

absl::Status CheckpointWriter::WriteNow(CheckpointContents contents) {
  const absl::Duration start = clock_->Monotonic();
  const TrainState state = contents.state;
  contents.previous = previous_;
  SLUICE_ASSIGN_OR_RETURN(const std::string path, store_->Write(std::move(contents)));
  previous_ = path;

  SLUICE_FAILPOINT_STATUS("trainer.durable.before");
  queue::v1::DurableRequest request;
  request.set_version(state.version.number);
  request.set_checkpoint(path);
  request.set_hash(state.ledger_hash);
  SLUICE_RETURN_IF_ERROR(queue_->Durable(std::move(request)).status());
  if (done_) done_(path, state, absl::ToDoubleSeconds(clock_->Monotonic() - start));
  return absl::OkStatus();
}

}  // namespace sluice::trainer
