#include "services/trainer/checkpoint_writer.h"

#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"

namespace sluice::trainer {

struct CheckpointWriter::Thread {
  std::thread thread;
};

CheckpointWriter::CheckpointWriter(CheckpointStore* store, QueueClient* queue, Clock* clock,
                                   std::string previous, Done done)
    : store_(store),
      queue_(queue),
      clock_(clock),
      done_(std::move(done)),
      previous_(std::move(previous)),
      thread_(new Thread) {
  thread_->thread = std::thread([this] { Run(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  thread_->thread.join();
}

absl::Status CheckpointWriter::Write(Contents contents) {
  MutexLock lock(&mu_);
  while (failure_.ok() && (waiting_.has_value() || busy_)) changed_.Wait(&mu_);
  if (!failure_.ok()) return failure_;
  waiting_ = std::move(contents);
  changed_.NotifyAll();
  return absl::OkStatus();
}

void CheckpointWriter::Run() {
  while (true) {
    Contents contents;
    {
      MutexLock lock(&mu_);
      busy_ = false;
      changed_.NotifyAll();
      while (!stopped_ && !waiting_.has_value()) changed_.Wait(&mu_);
      if (stopped_) return;
      contents = *std::exchange(waiting_, std::nullopt);
      busy_ = true;
    }
    const absl::Status status = WriteOne(contents);
    if (status.ok()) continue;
    MutexLock lock(&mu_);
    failure_ = status;
    busy_ = false;
    changed_.NotifyAll();
    return;
  }
}

absl::Status CheckpointWriter::WriteOne(const Contents& contents) {
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

absl::Status CheckpointWriter::Flush() {
  MutexLock lock(&mu_);
  while (failure_.ok() && (waiting_.has_value() || busy_)) changed_.Wait(&mu_);
  return failure_;
}

absl::Status CheckpointWriter::status() const {
  MutexLock lock(&mu_);
  return failure_;
}

}  // namespace sluice::trainer
