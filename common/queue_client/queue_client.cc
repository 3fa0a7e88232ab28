#include "common/queue_client/queue_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/queue_client/attachment.h"
#include "common/rpc/client.h"
#include "common/rpc/payload.h"
#include "common/rpc/stream.h"

namespace sluice {
namespace {

constexpr size_t kMaxInline = 64;

// Copies field `f` of `record` to its place and checks its CRC. A skipped field is copied to
// `scratch`, so that its CRC is checked too.
absl::Status CopyField(const common::v1::Record& record, int f, rpc::PayloadReader* payload,
                       const QueueClient::Place& place, std::string* scratch) {
  const common::v1::Field& field = record.fields(f);
  const bool is_inline = !field.inline_().empty();
  // Check the sizes before memory is asked for.
  if (is_inline && field.inline_().size() != field.bytes()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_FRAME",
                 absl::StrCat("field ", field.name(), " says ", field.bytes(),
                              " bytes and carries ", field.inline_().size()));
  }
  if (!is_inline && field.bytes() > payload->left()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_FRAME",
                 absl::StrCat("field ", field.name(), " says ", field.bytes(), " bytes; ",
                              payload->left(), " are left"));
  }

  char* to = place(record, f);
  if (to == nullptr) {
    scratch->resize(field.bytes());
    to = scratch->data();
  }

  uint32_t crc = 0;
  if (is_inline) {
    crc = Crc32cCopy(field.inline_(), to);
  } else {
    SLUICE_ASSIGN_OR_RETURN(crc, payload->Copy(field.bytes(), to));
  }
  if (crc == field.crc32c()) return absl::OkStatus();
  return Error(
      absl::StatusCode::kDataLoss, "BAD_CRC",
      absl::StrCat("field ", field.name(), " of group ", ToHex(record.owner().group()), " member ",
                   record.owner().member(), ": CRC32C ", crc, ", wanted ", field.crc32c()));
}

}  // namespace

QueueClient::QueueClient(std::shared_ptr<rpc::Channel> channel, Options options)
    : channel_(std::move(channel)), options_(std::move(options)) {}

common::v1::Call QueueClient::MakeCall(bool with_request) const {
  common::v1::Call call;
  call.mutable_job()->set_job(options_.job);
  call.mutable_job()->set_incarnation(options_.incarnation);
  call.mutable_job()->set_worker(options_.worker);
  if (with_request) call.set_request(RandomId16());
  return call;
}

absl::Status QueueClient::CallUntil(const google::protobuf::Message& request,
                                    google::protobuf::Message* response, rpc::Cancel* cancel) {
  return rpc::Call(*channel_, request, response,
                   {.give_up = options_.give_up, .cancel = cancel, .backoff = options_.backoff});
}

template <typename Request, typename Response>
absl::StatusOr<Response> QueueClient::Call(Request* request) {
  *request->mutable_call() = MakeCall();
  Response response;
  SLUICE_RETURN_IF_ERROR(CallUntil(*request, &response, options_.cancel));
  return response;
}

template <typename Request, typename Response>
absl::StatusOr<Response> QueueClient::CallParked(Request* request, bool with_request) {
  *request->mutable_call() = MakeCall(with_request);
  Response response;
  SLUICE_RETURN_IF_ERROR(
      CallUntil(*request, &response, options_.drain == nullptr ? options_.cancel : options_.drain));
  return response;
}

absl::StatusOr<queue::v1::AdmitResponse> QueueClient::Admit(queue::v1::AdmitRequest request) {
  return CallParked<queue::v1::AdmitRequest, queue::v1::AdmitResponse>(&request,
                                                                       /*with_request=*/true);
}
absl::StatusOr<queue::v1::LeaseTasksResponse> QueueClient::LeaseTasks(
    queue::v1::LeaseTasksRequest request) {
  return CallParked<queue::v1::LeaseTasksRequest, queue::v1::LeaseTasksResponse>(
      &request, /*with_request=*/true);
}
absl::StatusOr<queue::v1::AcquireBatchResponse> QueueClient::AcquireBatch(
    queue::v1::AcquireBatchRequest request) {
  return CallParked<queue::v1::AcquireBatchRequest, queue::v1::AcquireBatchResponse>(
      &request, /*with_request=*/false);
}
absl::StatusOr<queue::v1::SealResponse> QueueClient::Seal(queue::v1::SealRequest request) {
  return Call<queue::v1::SealRequest, queue::v1::SealResponse>(&request);
}
absl::StatusOr<queue::v1::DropResponse> QueueClient::Drop(queue::v1::DropRequest request) {
  return Call<queue::v1::DropRequest, queue::v1::DropResponse>(&request);
}
absl::StatusOr<queue::v1::RenewResponse> QueueClient::Renew(queue::v1::RenewRequest request) {
  return Call<queue::v1::RenewRequest, queue::v1::RenewResponse>(&request);
}
absl::StatusOr<queue::v1::ReleaseResponse> QueueClient::Release(queue::v1::ReleaseRequest request) {
  return Call<queue::v1::ReleaseRequest, queue::v1::ReleaseResponse>(&request);
}
absl::StatusOr<queue::v1::ApplyResponse> QueueClient::Apply(queue::v1::ApplyRequest request) {
  return Call<queue::v1::ApplyRequest, queue::v1::ApplyResponse>(&request);
}
absl::StatusOr<queue::v1::DurableResponse> QueueClient::Durable(queue::v1::DurableRequest request) {
  return Call<queue::v1::DurableRequest, queue::v1::DurableResponse>(&request);
}
absl::StatusOr<queue::v1::RestoreResponse> QueueClient::Restore(queue::v1::RestoreRequest request) {
  return Call<queue::v1::RestoreRequest, queue::v1::RestoreResponse>(&request);
}
absl::StatusOr<queue::v1::AdvanceVersionResponse> QueueClient::AdvanceVersion(
    queue::v1::AdvanceVersionRequest request) {
  return Call<queue::v1::AdvanceVersionRequest, queue::v1::AdvanceVersionResponse>(&request);
}

std::shared_ptr<Attachment> QueueClient::EnsureAttached() {
  if (!options_.shared_memory) return nullptr;
  MutexLock lock(&mu_);
  // Attach again if the queue has restarted, or has dropped the connection.
  if (attachment_ != nullptr && !attachment_->ended()) return attachment_;
  attachment_ = Attachment::Attach(channel_->address(), MakeCall()).value_or(nullptr);
  return attachment_;
}

namespace {
// Copies all fields of a message to their places.
absl::Status CopyFields(const queue::v1::GetHeader& header, const rpc::Frame& frame,
                        const QueueClient::Place& place, std::string* scratch) {
  rpc::PayloadReader payload(frame);
  for (const common::v1::Record& record : header.records()) {
    for (int f = 0; f < record.fields_size(); ++f)
      SLUICE_RETURN_IF_ERROR(CopyField(record, f, &payload, place, scratch));
  }
  return absl::OkStatus();
}

// The same if the bytes lie in shared memory. What was copied is valid only if the memory was not
// used again meanwhile.
absl::Status CopyShared(const queue::v1::GetHeader& header, rpc::Frame* frame,
                        Attachment* attachment, const QueueClient::Place& place,
                        std::string* scratch) {
  if (attachment == nullptr)
    return absl::InternalError(
        "QueueService.Get: the answer names shared memory, but the request did not ask for any");
  std::vector<std::shared_ptr<const shm::Segment>> segments;
  SLUICE_RETURN_IF_ERROR(attachment->Map(frame->shared(), &segments));

  std::vector<absl::string_view> views;
  for (size_t i = 0; i < segments.size(); ++i)
    views.emplace_back(segments[i]->data() + frame->shared()[i].offset, frame->shared()[i].length);
  frame->Resolve(std::move(views), nullptr);

  SLUICE_FAILPOINT("queue_client.get.before_copy");
  const absl::Status copied = CopyFields(header, *frame, place, scratch);
  SLUICE_FAILPOINT("queue_client.get.after_copy");
  // This comes first: if the memory was used again, that explains a wrong CRC.
  SLUICE_RETURN_IF_ERROR(Attachment::CheckNotRecycled(frame->shared(), segments));
  return copied;
}
}  // namespace

absl::Status QueueClient::GetOnce(const queue::v1::GetRequest& request, Attachment* attachment,
                                  const Place& place, std::vector<common::v1::Want>* missing) {
  rpc::ClientStream stream(*channel_, *queue::v1::GetRequest::descriptor(), options_.cancel);
  if (stream.Write(request)) stream.WritesDone();
  std::string scratch;
  bool ended = false;
  for (rpc::Frame frame; stream.ReadFrame(&frame);) {
    queue::v1::GetHeader header;
    SLUICE_RETURN_IF_ERROR(frame.ParseHeader(&header));
    SLUICE_RETURN_IF_ERROR(frame.shared().empty()
                               ? CopyFields(header, frame, place, &scratch)
                               : CopyShared(header, &frame, attachment, place, &scratch));
    missing->insert(missing->end(), header.missing().begin(), header.missing().end());
    ended = ended || header.end();
  }
  SLUICE_RETURN_IF_ERROR(stream.Finish());
  // A stream that ended well but without its last message is incomplete.
  if (!ended)
    return absl::UnavailableError("QueueService.Get: the answer ended without its last message");
  return absl::OkStatus();
}

absl::Status QueueClient::Get(absl::string_view lease, absl::Span<const common::v1::Want> wants,
                              const Place& place, std::vector<common::v1::Want>* missing) {
  return GetWithRetries(lease, wants, [] {}, place, missing);
}

absl::Status QueueClient::GetWithRetries(absl::string_view lease,
                                         absl::Span<const common::v1::Want> wants,
                                         const std::function<void()>& begin, const Place& place,
                                         std::vector<common::v1::Want>* missing) {
  queue::v1::GetRequest request;
  *request.mutable_call() = MakeCall();
  request.set_lease(std::string(lease));
  request.mutable_wants()->Add(wants.begin(), wants.end());

  const absl::Time end = absl::Now() + options_.give_up;
  rpc::Backoff backoff(options_.backoff);
  std::vector<common::v1::Want> gone;
  bool share = true;
  while (true) {
    // Every attempt starts from nothing.
    gone.clear();
    begin();
    const std::shared_ptr<Attachment> attachment = share ? EnsureAttached() : nullptr;
    request.set_session(attachment == nullptr ? "" : attachment->session());
    const absl::Status status = GetOnce(request, attachment.get(), place, &gone);
    if (status.ok()) break;
    // Read once more, with the bytes in the messages.
    if (share && absl::IsAborted(status) &&
        (ReasonOf(status) == "RECYCLED" || ReasonOf(status) == "NOT_SHARED")) {
      share = false;
      continue;
    }

    if (options_.cancel != nullptr && options_.cancel->triggered())
      return absl::CancelledError("QueueService.Get: cancelled");
    // A CANCELLED that `cancel` did not cause means that the connection was cut (see retry.h).
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;

    const absl::Duration wait = backoff.Next(DetailOf(status).retry_after);
    if (absl::Now() + wait >= end) return status;
    if (options_.cancel == nullptr) {
      absl::SleepFor(wait);
    } else if (options_.cancel->WaitFor(wait)) {
      return absl::CancelledError("QueueService.Get: cancelled");
    }
  }

  if (missing != nullptr) {
    missing->insert(missing->end(), gone.begin(), gone.end());
  } else if (!gone.empty()) {
    return Error(absl::StatusCode::kNotFound, "GONE",
                 absl::StrCat("the queue has dropped or freed ", gone.size(), " of ", wants.size(),
                              " items; the first: group ", ToHex(gone[0].owner().group()),
                              " member ", gone[0].owner().member()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<QueueClient::Fetched>> QueueClient::GetAll(
    absl::string_view lease, absl::Span<const common::v1::Want> wants,
    std::vector<common::v1::Want>* missing) {
  std::vector<Fetched> fetched;
  std::string last_record;  // Name of the last record while more parts of it may come, else empty.
  const auto name = [](const common::v1::Record& record) {
    return absl::StrCat(record.owner().SerializeAsString(), "/",
                        record.has_piece() ? record.piece().at() + 1 : 0);
  };
  // Fields arrive in order. The first field of a record adds a new record, or continues the last
  // one if that has more parts.
  const auto place = [&](const common::v1::Record& record, int f) {
    if (f == 0 && (last_record.empty() || last_record != name(record))) {
      fetched.push_back({record, {}});
      fetched.back().record.clear_fields();
    }
    last_record = record.more() ? name(record) : "";
    Fetched& whole = fetched.back();
    whole.record.set_more(record.more());
    const common::v1::Field& field = record.fields(f);
    if (field.from() == 0) {
      *whole.record.add_fields() = field;
      whole.fields.emplace_back(std::max(field.bytes(), field.total()), '\0');
      return whole.fields.back().data();
    }
    // A further part of the last field: join the CRCs, and drop `total` when the field is complete.
    common::v1::Field& begun = *whole.record.mutable_fields(whole.record.fields_size() - 1);
    begun.set_crc32c(Crc32cConcat(begun.crc32c(), field.crc32c(), field.bytes()));
    begun.set_bytes(begun.bytes() + field.bytes());
    if (begun.bytes() == begun.total()) begun.clear_total();
    return whole.fields.back().data() + field.from();
  };
  const auto begin = [&] {
    fetched.clear();
    last_record.clear();
  };
  SLUICE_RETURN_IF_ERROR(GetWithRetries(lease, wants, begin, place, missing));
  return fetched;
}

namespace {
common::v1::Field* AppendField(absl::string_view name, common::v1::Dtype dtype,
                               absl::Span<const int64_t> shape, absl::string_view bytes,
                               common::v1::Record* record) {
  common::v1::Field* field = record->add_fields();
  field->set_name(std::string(name));
  field->set_dtype(dtype);
  field->mutable_shape()->Add(shape.begin(), shape.end());
  field->set_bytes(bytes.size());
  field->set_crc32c(Crc32c(bytes));
  return field;
}
}  // namespace

void AddField(absl::string_view name, common::v1::Dtype dtype, absl::Span<const int64_t> shape,
              absl::string_view bytes, common::v1::Record* record, std::string* payload) {
  AppendField(name, dtype, shape, bytes, record);
  payload->append(bytes.data(), bytes.size());
}

void AddField(absl::string_view name, common::v1::Dtype dtype, absl::Span<const int64_t> shape,
              absl::string_view bytes, std::shared_ptr<const void> owner,
              common::v1::Record* record, std::vector<rpc::PayloadSlice>* payload) {
  AppendField(name, dtype, shape, bytes, record);
  if (!bytes.empty()) payload->push_back({bytes, std::move(owner)});
}

void AddInlineField(absl::string_view name, common::v1::Dtype dtype, absl::string_view bytes,
                    common::v1::Record* record) {
  SLUICE_CHECK(bytes.size() <= kMaxInline);
  AppendField(name, dtype, {}, bytes, record)->set_inline_(std::string(bytes));
}

}  // namespace sluice
