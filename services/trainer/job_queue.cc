#include "services/trainer/job_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"

namespace sluice::trainer {

absl::Status JobQueue::Connect() {
  MutexLock lock(&mu_);
  SLUICE_ASSIGN_OR_RETURN(channel_, rpc::Connect(address_.empty() ? job_->config.queue : address_,
                                                 {rpc::Role::kQueue}));
  QueueClient::Options options{.job = job_->config.id,
                               .worker = job_->worker,
                               .incarnation = job_->config.incarnation,
                               .cancel = &cancel_all_};
  client_ = std::make_unique<QueueClient>(channel_, options);
  options.cancel = &cancel_reading_;
  reading_client_ = std::make_unique<QueueClient>(channel_, options);
  return absl::OkStatus();
}

void JobQueue::MoveTo(const std::string& address) {
  MutexLock lock(&mu_);
  if (address == (address_.empty() ? job_->config.queue : address_)) return;
  log::Info("queue_moved", {{"job_id", job_->config.name}, {"address", address}});
  address_ = address;
  if (channel_ == nullptr) return;
  if (const absl::Status moved = channel_->MoveTo(address); !moved.ok())
    log::Error("bad_queue_address", {{"job_id", job_->config.name}, {"error", moved}});
}

absl::StatusOr<JobQueue::Restored> JobQueue::Restore(const std::string& cursor,
                                                     const std::string& checkpoint,
                                                     const TrainState& state, bool requeue) {
  const int64_t version = state.version.number;
  queue::v1::RestoreRequest request;
  request.set_cursor(cursor);
  request.set_checkpoint(checkpoint);
  request.set_mode(requeue ? queue::v1::RESTORE_MODE_REQUEUE : queue::v1::RESTORE_MODE_REPLAY);

  const auto waits = job_->waits.Begin(
      {.kind = "DAEMON",
       .id = "queue",
       .at = "queue",
       .cause = absl::StrCat(job_->worker, " asks the queue to restore version ", version)});
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::RestoreResponse response,
                          client_->Restore(std::move(request)));
  if (response.version() != version || response.ledger().hash() != state.ledger_hash) {
    return absl::DataLossError(absl::StrCat("the queue restored version ", response.version(),
                                            " with ledger hash ", ToHex(response.ledger().hash()),
                                            "; the checkpoint holds version ", version, " with ",
                                            ToHex(state.ledger_hash)));
  }

  Restored restored{.replay_end = response.end()};
  if (response.published_size() > 0)
    restored.published = rpc::FromProto(response.published(0).version());
  return restored;
}

void JobQueue::StartReading(BatchReader::Options options) {
  // The handlers are empty: the next call that names a lost lease returns an error, and after a
  // fenced renewal every call does.
  leases_ = std::make_unique<LeaseKeeper>(
      client_.get(), LeaseKeeper::Options{.on_lost = [](const auto&) {}, .on_failed = [](auto) {}});
  reader_ = std::make_unique<BatchReader>(reading_client_.get(), leases_.get(), std::move(options));
}

absl::StatusOr<BatchReader::Slice> JobQueue::NextSlice(int64_t k) {
  const auto waits = job_->waits.Begin({.kind = "BATCH",
                                        .id = absl::StrCat(k),
                                        .at = "queue",
                                        .cause = absl::StrCat(job_->worker, " waits for batch ", k),
                                        .step = k});
  absl::StatusOr<BatchReader::Slice> slice = reader_->Next();
  if (slice.ok() && slice->k != k) {
    return absl::InternalError(
        absl::StrCat("the queue sent a slice of batch ", slice->k, " for batch ", k));
  }
  return slice;
}

absl::StatusOr<JobQueue::Applied> JobQueue::Apply(const TrainedBatch& batch,
                                                  const std::string& ledger_hash,
                                                  bool want_cursor) {
  const std::string canonical = CanonicalBytes(batch.lineage);
  const uint32_t crc32c = Crc32c(canonical);
  if (crc32c != batch.crc32c) {
    return absl::DataLossError(absl::StrCat("batch ", batch.k,
                                            ": the CRC32C of what was trained on is ", crc32c,
                                            ", but the queue says ", batch.crc32c));
  }

  SLUICE_FAILPOINT_STATUS("trainer.step.before_apply");
  queue::v1::ApplyRequest request;
  request.set_k(batch.k);
  request.set_lease(batch.lease);
  request.set_crc32c(batch.crc32c);
  request.set_skipped(batch.skipped);
  if (batch.ess.has_value()) request.set_ess(*batch.ess);
  if (batch.kl.has_value()) request.set_kl(*batch.kl);
  request.set_want_cursor(want_cursor);
  leases_->Forget(batch.lease);
  last_apply_ = request;

  queue::v1::ApplyResponse response;
  {
    const auto waits = job_->waits.Begin({.kind = "DAEMON",
                                          .id = "queue",
                                          .at = "queue",
                                          .cause = absl::StrCat(job_->worker, " has trained batch ",
                                                                batch.k, " and tells the queue"),
                                          .step = batch.k});
    absl::StatusOr<queue::v1::ApplyResponse> applied = client_->Apply(request);
    if (ReasonOf(applied.status()) == "LEASE_LOST") {
      SLUICE_ASSIGN_OR_RETURN(*request.mutable_lease(), AcquireAgain(batch));
      last_apply_ = request;
      applied = client_->Apply(std::move(request));
    }
    SLUICE_ASSIGN_OR_RETURN(response, std::move(applied));
  }
  SLUICE_FAILPOINT_STATUS("trainer.step.after_apply");

  const std::string hash = NextLedgerHash(ledger_hash, batch.k, canonical);
  if (response.ledger().hash() != hash) {
    return absl::DataLossError(absl::StrCat("batch ", batch.k, ": the ledger's hash is ",
                                            ToHex(response.ledger().hash()),
                                            ", but what was trained on gives ", ToHex(hash)));
  }
  reader_->OnApplied(batch.k);
  return Applied{.ledger_hash = hash, .cursor = response.cursor()};
}

absl::StatusOr<std::string> JobQueue::AcquireAgain(const TrainedBatch& batch) {
  queue::v1::AcquireBatchRequest request;
  request.set_k(batch.k);
  request.set_from(batch.groups);  // The trainer has all groups, so none need be sent.
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::AcquireBatchResponse response,
                          client_->AcquireBatch(std::move(request)));
  log::Warning("lease_lost", {{"job_id", job_->config.name},
                              {"k", batch.k},
                              {"next", "the trained batch is acquired again and applied"}});
  return response.batch().lease().id();
}

absl::StatusOr<std::optional<std::string>> JobQueue::CursorOfLastApply() {
  if (!last_apply_.has_value()) return std::nullopt;
  queue::v1::ApplyRequest request = *last_apply_;
  request.set_want_cursor(true);
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::ApplyResponse response,
                          client_->Apply(std::move(request)));
  return response.cursor();
}

void JobQueue::StopReading(bool release) {
  cancel_reading_.Trigger();
  const std::unique_ptr<BatchReader> reader = std::move(reader_);
  if (reader == nullptr) return;
  const std::vector<std::string> held = reader->Stop();
  if (!release || held.empty()) return;

  queue::v1::ReleaseRequest request;
  request.set_reason(queue::v1::RELEASE_REASON_DRAIN);
  for (const std::string& lease : held) {
    leases_->Forget(lease);
    request.add_leases(lease);
  }
  const absl::Status released = client_->Release(std::move(request)).status();
  if (!released.ok()) {
    log::Warning("release_failed", {{"job_id", job_->config.name}, {"error", released}});
  }
}

}  // namespace sluice::trainer
