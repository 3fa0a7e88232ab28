#include "tests/fuzz/queue_calls.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/rpc/payload.h"
#include "services/queue/core/codec.h"
#include "services/queue/core/fields.h"

namespace sluice::queue {
SLUICE_FIELDS(CancelHint, ref, reason, worker)
SLUICE_FIELDS(Alarm, code, message, is_news)
SLUICE_FIELDS(Effects, answers, cancel, alarms, watch, stored)
}  // namespace sluice::queue

namespace sluice::fuzz {
namespace {
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using queue::Job;

constexpr char kJob[] = "00112233445566778899aabbccddeeff";
constexpr uint64_t kMemory = 1 << 30;  // Memory of the daemon, for all jobs.
constexpr uint64_t kMostWakeUps = 64;  // Most wake-ups of the job in one PassTime().
constexpr size_t kMostIds = 256;       // One byte names an id.
constexpr uint64_t kCheckEvery = 16;   // Events from one CheckAll() to the next.

// A source with a row for every index. Drawing reads only the number of rows.
class Rows : public queue::RowSource {
 public:
  uint64_t rows(uint32_t) const override { return 50; }
  std::string json(uint32_t source, uint64_t index) const override {
    return absl::StrCat(R"({"prompt":")", source, ".", index, "\"}");
  }
};

std::string BytesOf(const queue::Effects& effects) {
  queue::Writer writer(queue::Payload::kKept);
  writer(effects);
  return std::move(writer).Finish().head;
}

// Returns the payload of `encoded` in one piece, as a log returns it.
std::vector<queue::PayloadRun> AsRead(const queue::Encoded& encoded) {
  auto all = std::make_shared<std::string>();
  for (const queue::Bytes& part : encoded.parts) {
    if (part.data != nullptr) all->append(part.data.get(), part.size);
  }
  if (all->empty()) return {};
  return {{.owner = all, .bytes = *all}};
}

void CheckStatus(const absl::Status& status) {
  SLUICE_CHECK_MSG(
      status.code() != absl::StatusCode::kInternal && status.code() != absl::StatusCode::kUnknown,
      status.ToString());
}

bool Parse(absl::string_view bytes, Message* message) {
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

Job::Options Options(uint32_t incarnation) {
  return {.id = kJob, .queue_incarnation = incarnation, .seed = 99};
}

std::unique_ptr<Job> MakeJob(const queue::Spec& spec) {
  return std::make_unique<Job>(Options(1), spec, std::make_shared<Rows>());
}

}  // namespace

// Turns off protobuf's log, which would report every text that is not UTF-8.
QueueCalls::QueueCalls() { google::protobuf::SetLogHandler(nullptr); }
QueueCalls::~QueueCalls() = default;

std::string QueueCalls::Ref(const std::string& id) const {
  const auto index = [&](const std::vector<std::string>& told) {
    return std::find(told.begin(), told.end(), id) - told.begin();
  };
  const auto& told = id.size() == 16 ? ids_ : id.size() == 32 ? hashes_ : cursors_;
  SLUICE_CHECK(static_cast<size_t>(index(told)) < told.size());
  return std::string(1, static_cast<char>(index(told)));
}

void QueueCalls::Do(Op op, absl::string_view bytes) {
  namespace v1 = queue::v1;
  answer_.reset();
  switch (op) {
    case Op::kSetJob: return SetJob(bytes);
    case Op::kAdmit:
      return Unary<v1::AdmitRequest, v1::AdmitResponse, queue::AdmitAnswer>(bytes, "r1");
    case Op::kPut: return Put(bytes);
    case Op::kGet: return Get(bytes);
    case Op::kSeal:
      return Unary<v1::SealRequest, v1::SealResponse, queue::ItemsAnswer>(bytes, "r1");
    case Op::kDrop:
      return Unary<v1::DropRequest, v1::DropResponse, queue::ItemsAnswer>(bytes, "r1");
    case Op::kLeaseTasks:
      return Unary<v1::LeaseTasksRequest, v1::LeaseTasksResponse, queue::LeaseTasksAnswer>(bytes,
                                                                                           "w1");
    case Op::kRenew:
      return Unary<v1::RenewRequest, v1::RenewResponse, queue::RenewAnswer>(bytes, "r1");
    case Op::kRelease:
      return Unary<v1::ReleaseRequest, v1::ReleaseResponse, queue::ReleaseAnswer>(bytes, "r1");
    case Op::kAcquireBatch:
      return Unary<v1::AcquireBatchRequest, v1::AcquireBatchResponse, queue::AcquireBatchAnswer>(
          bytes, "t1");
    case Op::kApply:
      return Unary<v1::ApplyRequest, v1::ApplyResponse, queue::ApplyAnswer>(bytes, "t1");
    case Op::kAdvanceVersion:
      return Unary<v1::AdvanceVersionRequest, v1::AdvanceVersionResponse,
                   queue::AdvanceVersionAnswer>(bytes, "t1");
    case Op::kDurable:
      return Unary<v1::DurableRequest, v1::DurableResponse, queue::DurableAnswer>(bytes, "t1");
    case Op::kRestore:
      return Unary<v1::RestoreRequest, v1::RestoreResponse, queue::RestoreAnswer>(bytes, "t1");
    case Op::kRetask:
      return Unary<v1::RetaskRequest, v1::RetaskResponse, queue::RetaskAnswer>(bytes, "controller");
    case Op::kStats:
    case Op::kPeek:
    case Op::kWatch: return Read(op, bytes);
    default: break;
  }

  if (job_ == nullptr) return;
  uint64_t number = 0;
  for (size_t i = 0; i < std::min<size_t>(bytes.size(), 3); ++i)
    number |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);

  switch (op) {
    case Op::kClock: return PassTime(number);
    case Op::kDisk: return Send({}, queue::DiskSpace{static_cast<queue::Space>(number % 3)});
    case Op::kMemory: return Send({}, queue::MemoryShare{(number % 256) << 20});
    case Op::kRestart: return Restart();
    case Op::kForget: {
      if (waiting_.empty()) return;
      const uint64_t call = waiting_.begin()->first;
      waiting_.erase(waiting_.begin());
      return Step({.now = now_, .call = call, .input = queue::CallerGone{}});
    }
    default: return;
  }
}

// Messages. ---------------------------------------------------------------------------------------

template <typename Request, typename Response, typename Result>
void QueueCalls::Unary(absl::string_view bytes, const char* worker) {
  Request request;
  if (!Parse(bytes, &request)) return;
  CompleteRequest(&request, worker);
  if constexpr (std::is_same_v<Request, queue::v1::SealRequest>) {
    for (queue::v1::SealItem& item : *request.mutable_items()) {
      const auto group = Id16::FromBytes(item.ref().group());
      const queue::Group* held = job_ != nullptr && group.ok()
                                     ? job_->group(queue::GroupId::From(*group).ordinal)
                                     : nullptr;
      if (item.crc32c() != 0 || held == nullptr || item.ref().member() >= held->members.size())
        continue;
      item.set_tokens(held->prompt.tokens() + held->members[item.ref().member()].log.tokens());
      item.set_crc32c(held->members[item.ref().member()].log.crc32c());
    }
  } else if constexpr (std::is_same_v<Request, queue::v1::ApplyRequest>) {
    const bool known = job_ != nullptr && job_->batches().contains(request.k());
    if (request.crc32c() == 0 && known) request.set_crc32c(job_->batches().at(request.k()).crc32c);
  }

  const auto from = queue::FromProto(request.call());
  auto input = queue::FromProto(request);
  CheckStatus(from.status());
  CheckStatus(input.status());
  if (!from.ok() || !input.ok() || from->job != kJob || job_ == nullptr) return;
  Send(from->caller, *std::move(input), [this](const queue::Reply& reply) {
    auto response = std::make_unique<Response>();
    if constexpr (std::is_same_v<Result, queue::AdmitAnswer>) {
      queue::ToProto(std::get<Result>(reply), spec_.sampling, response.get());
    } else {
      queue::ToProto(std::get<Result>(reply), response.get());
    }
    CollectIds(*response);
    answer_ = std::move(response);
  });
}

// As in JobTable, the first call makes the job.
void QueueCalls::SetJob(absl::string_view bytes) {
  queue::v1::SetJobRequest request;
  if (!Parse(bytes, &request)) return;
  CompleteRequest(&request, "controller");
  const auto from = queue::FromProto(request.call());
  auto input = queue::FromProto(request);
  CheckStatus(from.status());
  CheckStatus(input.status());
  if (!from.ok() || !input.ok() || from->job != kJob) return;

  if (job_ == nullptr) {
    const absl::Status fit = Job::CheckSpec(input->spec);
    CheckStatus(fit);
    if (!fit.ok() || Job::NeededBytes(input->spec) > kMemory) return;
    spec_ = input->spec;
    job_ = MakeJob(spec_);
    twin_ = MakeJob(spec_);
  }

  Send(from->caller, *std::move(input), [this](const queue::Reply& reply) {
    queue::v1::SetJobResponse response;
    queue::ToProto(std::get<queue::SetJobAnswer>(reply), &response);
    CollectIds(response);
  });
}

void QueueCalls::Put(absl::string_view bytes) {
  std::string frame_bytes(bytes);
  if (queue::v1::PutMessage message; Parse(bytes, &message)) {
    CompleteRequest(message.mutable_header(), "r1");
    FillChecksums(&message);
    frame_bytes = message.SerializeAsString();
  }

  const grpc::Slice slice(frame_bytes);
  const grpc::ByteBuffer buffer(&slice, 1);
  rpc::Frame frame;
  queue::v1::PutHeader header;
  absl::Status status = rpc::DecodeFrame(buffer, &frame);
  if (status.ok()) status = frame.ParseHeader(&header);
  CheckStatus(status);
  if (!status.ok()) return;
  const auto from = queue::FromProto(header.call());

  // Shared memory needs a session, which this harness does not have.
  if (!from.ok() || from->job != kJob || job_ == nullptr || !frame.shared().empty()) return;
  // Each worker has one stream, which ends with its first malformed message.
  const auto stream =
      streams_.try_emplace(from->caller.worker, &arena_, spec_.member_bytes()).first;
  auto batch = stream->second.Read(header, frame);
  CheckStatus(batch.status());

  if (!batch.ok()) {
    streams_.erase(stream);
    return;
  }

  SLUICE_CHECK(batch->records.size() == batch->places.size() &&
               batch->records.size() + batch->failed.size() <=
                   static_cast<size_t>(header.records_size()));
  for (const queue::Failed& failed : batch->failed) CheckStatus(failed.status);
  Send(from->caller, queue::Put{std::move(batch->records)},
       [this, places = batch->places](const queue::Reply& reply) {
         for (const queue::Failed& failed : std::get<queue::PutAnswer>(reply).failed) {
           SLUICE_CHECK(failed.record < places.size() && !failed.status.ok());
           CheckStatus(failed.status);
         }
         answer_ = std::make_unique<queue::v1::PutAck>();
       });
}

void QueueCalls::Get(absl::string_view bytes) {
  queue::v1::GetRequest request;
  if (!Parse(bytes, &request)) return;
  CompleteRequest(&request, "t1");
  const auto from = queue::FromProto(request.call());
  if (!from.ok() || from->job != kJob || job_ == nullptr) return;
  Id16 lease;
  const bool controller = request.lease().empty() && from->caller.incarnation == 0;
  if (const auto id = Id16::FromBytes(request.lease()); id.ok()) lease = *id;
  else if (!controller) return;
  std::vector<queue::Want> wants;

  for (const common::v1::Want& in : request.wants()) {
    const auto want = queue::FromProto(in);
    CheckStatus(want.status());
    if (!want.ok()) return;
    wants.push_back(*want);
  }

  const auto read = job_->Read(from->caller, controller, lease, wants);
  CheckStatus(read.status());
  if (!read.ok()) return;
  for (const queue::Record& record : read->records) {
    common::v1::Record message;
    queue::ToProto(record, &message);
    for (const queue::Field& field : record.fields) {
      SLUICE_CHECK(field.bytes.data == nullptr ||
                   Crc32c({field.bytes.data.get(), field.bytes.size}) == field.bytes.crc32c);
      queue::ToProto(field, message.add_fields());
    }
  }
}

void QueueCalls::Read(Op op, absl::string_view bytes) {
  // The requests of Stats and Watch can be read as PeekRequest too, because their only field, the
  // call, has the same number.
  queue::v1::PeekRequest request;
  if (!Parse(bytes, &request)) return;
  CompleteRequest(&request, "controller");
  const auto from = queue::FromProto(request.call());
  CheckStatus(from.status());
  if (!from.ok() || job_ == nullptr) return;

  if (op == Op::kStats) {
    queue::v1::StatsResponse response;
    queue::ToProto(job_->Stats(), &response);
  } else if (op == Op::kWatch) {
    CheckStatus(job_->CheckKnown(from->caller));

    for (const queue::Loaded& loaded : job_->watch().published) {
      common::v1::Loaded message;
      queue::ToProto(loaded, &message);
    }
  } else if (request.what() >= queue::v1::PEEK_WHAT_GROUPS &&
             request.what() <= queue::v1::PEEK_WHAT_VIOLATIONS) {
    for (const queue::PeekRow& row : job_->Peek(static_cast<queue::PeekWhat>(request.what()),
                                                request.state(), now_, request.text())) {
      queue::v1::PeekRow message;
      queue::ToProto(row, &message);
      SLUICE_CHECK_MSG(nlohmann::json::accept(row.json), row.json);
    }
  }
}

// Replaces single bytes by the ids that they stand for, and fills in the caller if it is left out.
void QueueCalls::CompleteRequest(Message* request, const char* worker) {
  SubstituteIds(request);
  const FieldDescriptor* const field = request->GetDescriptor()->FindFieldByName("call");
  auto* const call =
      static_cast<common::v1::Call*>(request->GetReflection()->MutableMessage(request, field));
  common::v1::JobRef& job = *call->mutable_job();
  if (job.job().empty()) job.set_job(kJob);

  if (job.worker().empty()) {
    job.set_worker(worker);
    if (job.incarnation() == 0 && job.worker() != "controller") job.set_incarnation(1);
  }

  if (call->request().empty())
    call->set_request(absl::StrCat("request ", absl::Hex(calls_, absl::kZeroPad8)));
}

void QueueCalls::SubstituteIds(Message* message) {
  const google::protobuf::Reflection& r = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(*message, &fields);
  const auto told = [this](const FieldDescriptor& field, const std::string& value) {
    const std::vector<std::string>& pool = field.name() == "hash"     ? hashes_
                                           : field.name() == "cursor" ? cursors_
                                                                      : ids_;
    const bool stands_for_one = value.size() == 1 && field.type() == FieldDescriptor::TYPE_BYTES &&
                                field.name() != "inline" && field.name() != "payload";
    return stands_for_one && !pool.empty() ? pool[static_cast<uint8_t>(value[0]) % pool.size()]
                                           : value;
  };

  for (const FieldDescriptor* field : fields) {
    const bool text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING,
               nested = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (text && !field->is_repeated())
      r.SetString(message, field, told(*field, r.GetString(*message, field)));
    if (nested && !field->is_repeated()) SubstituteIds(r.MutableMessage(message, field));

    for (int i = 0; field->is_repeated() && i < r.FieldSize(*message, field); ++i) {
      if (text)
        r.SetRepeatedString(message, field, i,
                            told(*field, r.GetRepeatedString(*message, field, i)));
      if (nested) SubstituteIds(r.MutableRepeatedMessage(message, field, i));
    }
  }
}

void QueueCalls::CollectIds(const Message& message) {
  const google::protobuf::Reflection& r = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(message, &fields);
  const auto keep = [](std::vector<std::string>* told, const std::string& value) {
    if (told->size() < kMostIds && std::find(told->begin(), told->end(), value) == told->end())
      told->push_back(value);
  };

  for (const FieldDescriptor* field : fields) {
    const int n = field->is_repeated() ? r.FieldSize(message, field) : 1;
    for (int i = 0; i < n; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        CollectIds(field->is_repeated() ? r.GetRepeatedMessage(message, field, i)
                                        : r.GetMessage(message, field));
      } else if (field->type() == FieldDescriptor::TYPE_BYTES) {
        const std::string value = field->is_repeated() ? r.GetRepeatedString(message, field, i)
                                                       : r.GetString(message, field);
        if (field->name() == "cursor") keep(&cursors_, value);
        else if (field->name() == "hash") keep(&hashes_, value);
        else if (value.size() == 16) keep(&ids_, value);
      }
    }
  }
}

// Fills in the checksums that are left out.
void QueueCalls::FillChecksums(queue::v1::PutMessage* message) const {
  absl::string_view payload = message->payload();
  for (common::v1::Record& record : *message->mutable_header()->mutable_records()) {
    for (common::v1::Field& field : *record.mutable_fields()) {
      absl::string_view bytes = field.inline_();
      if (bytes.empty()) {
        bytes = payload.substr(0, field.bytes());
        payload.remove_prefix(bytes.size());
      }
      if (field.crc32c() == 0) field.set_crc32c(Crc32c(bytes));
    }
  }
}

// The job. ----------------------------------------------------------------------------------------

void QueueCalls::PassTime(uint64_t ticks) {
  const queue::Instant end = now_ + absl::Milliseconds(10) * ticks;
  for (uint64_t i = 0; i < kMostWakeUps && job_->NextWake() <= end; ++i) {
    now_ = std::max(now_, job_->NextWake());
    Step({.now = now_, .input = queue::Tick{}});
    SLUICE_CHECK_MSG(job_->NextWake() > now_, "what was due is still due");
  }
  now_ = std::max(now_, end);
  Step({.now = now_, .input = queue::Tick{}});
}

// Restarts the queue and restores the job according to its durability. Parked calls are lost; with
// `metadata` the payload is lost too. With `memory` the job would be lost, so nothing is done.
void QueueCalls::Restart() {
  if (spec_.durability == queue::Durability::kMemory) return;
  const queue::Encoded dump =
      job_->Dump(spec_.durability == queue::Durability::kMetadata ? queue::Payload::kLeftOut
                                                                  : queue::Payload::kKept);

  for (std::unique_ptr<Job>* job : {&job_, &twin_}) {
    *job = MakeJob(spec_);
    const absl::Status loaded = (*job)->Load(dump.head, AsRead(dump));
    SLUICE_CHECK_MSG(loaded.ok(), loaded.ToString());
  }

  waiting_.clear();
  streams_.clear();
  Step({.now = now_, .input = queue::Restarted{++incarnation_}});
}

void QueueCalls::Send(const queue::Caller& caller, queue::Input input, OnReply on_reply) {
  const uint64_t call = ++calls_;
  const bool answered = on_reply != nullptr;
  if (answered) waiting_.emplace(call, std::move(on_reply));
  const bool parks = std::holds_alternative<queue::Admit>(input) ||
                     std::holds_alternative<queue::LeaseTasks>(input) ||
                     std::holds_alternative<queue::AcquireBatch>(input);
  Step({.now = now_, .call = answered ? call : 0, .caller = caller, .input = std::move(input)});
  SLUICE_CHECK_MSG(parks || !waiting_.contains(call), "a call that never parks has no answer");
}

void QueueCalls::Step(const queue::Event& event) {
  queue::Effects effects, again;
  job_->Step(event, &effects);
  const queue::Encoded encoded = queue::EncodeEvent(event, queue::Payload::kKept);
  const absl::StatusOr<queue::Event> read = queue::DecodeEvent(encoded.head, AsRead(encoded));
  SLUICE_CHECK_MSG(read.ok(), read.status().ToString());
  twin_->Step(*read, &again);

  SLUICE_CHECK_MSG(BytesOf(again) == BytesOf(effects), "a recovered job answers differently");
  SLUICE_CHECK(twin_->NextWake() == job_->NextWake());

  for (const auto& [call, reply] : effects.answers) {
    const auto waits = waiting_.extract(call);
    SLUICE_CHECK_MSG(!waits.empty(), "an answer that nobody waits for");
    if (const auto* status = std::get_if<absl::Status>(&reply)) {
      SLUICE_CHECK(!status->ok());
      CheckStatus(*status);
    } else {
      waits.mapped()(reply);
    }
  }
  if (++steps_ % kCheckEvery == 0) CheckAll();
}

void QueueCalls::CheckAll() {
  if (job_ == nullptr) return;
  const std::vector<std::string> violations = job_->FindViolations();
  SLUICE_CHECK_MSG(violations.empty(), absl::StrJoin(violations, "; "));
  SLUICE_CHECK(job_->ledger().gap() == 0);

  for (const queue::WaitEdge& edge : job_->Explain(now_)) {
    common::v1::WaitEdge message;
    queue::ToProto(edge, &message);
    SLUICE_CHECK(!edge.cause.empty() && !edge.on.id.empty());
  }

  const queue::Encoded dump = job_->Dump(queue::Payload::kKept);
  SLUICE_CHECK_MSG(twin_->Dump(queue::Payload::kKept).head == dump.head, "a recovered job differs");
  twin_ = MakeJob(spec_);
  SLUICE_CHECK(twin_->Load(dump.head, AsRead(dump)).ok());

  SLUICE_CHECK_MSG(twin_->Dump(queue::Payload::kKept).head == dump.head,
                   "a dump does not survive its loading");
}

}  // namespace sluice::fuzz
