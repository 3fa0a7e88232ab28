#include "services/rollout/score_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"
#include "services/rollout/core/engine/scoring.h"
#include "services/rollout/generate_stream.h"

namespace sluice::rollout {
namespace {

constexpr char kPolicy[] = "policy";  // Name of the only policy that this build has.
constexpr size_t kInFlight = 4;       // Most messages that are queued and not written yet.

absl::Status RecordError(const common::v1::Record& record, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("record of member ", record.owner().member(),
                                                 ", at ", record.piece().at(), ": ", what));
}

// Appends the record's tokens to `tokens`. The record must have no other field.
absl::Status ReadTokens(const common::v1::Record& record, rpc::PayloadReader* payload,
                        std::vector<int32_t>* tokens) {
  if (!record.has_piece() || record.fields_size() != 1 || record.fields(0).name() != "tokens")
    return RecordError(record, "a record must have a piece, and `tokens` as its only field");
  const common::v1::Field& field = record.fields(0);
  const uint64_t bytes = uint64_t{record.piece().count()} * sizeof(int32_t);
  if (field.dtype() != common::v1::DTYPE_I32 || bytes == 0 || field.bytes() != bytes) {
    return RecordError(record, absl::StrCat("tokens have ", field.bytes(), " bytes of dtype ",
                                            static_cast<int>(field.dtype()),
                                            "; wanted: I32, 4 bytes for each of the piece's ",
                                            record.piece().count()));
  }
  if (field.from() != 0 || record.more())
    return RecordError(record, absl::StrCat("it is cut over messages; send it whole, at most ",
                                            rpc::kMaxPayloadBytes, " bytes, or as several pieces"));

  const size_t before = tokens->size();
  if (bytes > (field.inline_().empty() ? payload->left() : field.inline_().size()))
    return RecordError(record, absl::StrCat("the message ends before its ", bytes, " bytes"));
  tokens->resize(before + record.piece().count());
  char* const to = reinterpret_cast<char*>(tokens->data() + before);
  uint32_t crc = 0;
  if (field.inline_().empty()) {
    SLUICE_ASSIGN_OR_RETURN(crc, payload->Copy(bytes, to));
  } else {
    std::copy_n(field.inline_().data(), bytes, to);
    crc = Crc32c(field.inline_());
  }
  if (crc == field.crc32c()) return absl::OkStatus();
  return Error(
      absl::StatusCode::kDataLoss, "BAD_CRC",
      absl::StrCat("record of member ", record.owner().member(), ", at ", record.piece().at(),
                   ": tokens have CRC ", crc, ", not ", field.crc32c(), "; send them again"));
}

common::v1::Record WithoutFields(const common::v1::Record& record) {
  common::v1::Record bare;
  *bare.mutable_owner() = record.owner();
  *bare.mutable_piece() = record.piece();
  return bare;
}

bool SameMember(const common::v1::TrajectoryRef& a, const common::v1::TrajectoryRef& b) {
  return a.group() == b.group() && a.member() == b.member() && a.attempt() == b.attempt();
}

}  // namespace

uint64_t ScoreStream::Sequence::bytes() const {
  uint64_t bytes = tokens.size() * sizeof(int32_t);
  for (const common::v1::Record& record : records) bytes += record.ByteSizeLong();
  return bytes;
}

// On the thread that reads. -----------------------------------------------------------------------

void ScoreStream::OnMessage(grpc::ByteBuffer& message) {
  if (absl::Status status = Read(message); !status.ok()) End(std::move(status));
}

void ScoreStream::OnReadsDone() {
  if (absl::Status status = EndSequence(); !status.ok()) return End(std::move(status));
  {
    MutexLock lock(&mu_);
    reads_done_ = true;
  }
  Flush();
}

absl::Status ScoreStream::Read(const grpc::ByteBuffer& message) {
  rpc::Frame frame;
  engine::v1::ScoreHeader header;
  SLUICE_RETURN_IF_ERROR(rpc::DecodeFrame(message, &frame));
  SLUICE_RETURN_IF_ERROR(frame.ParseHeader(&header));
  if (!frame.shared().empty())
    return absl::InvalidArgumentError(
        "payload in shared memory is not read here; send it in the message");
  if (model_ == nullptr) SLUICE_RETURN_IF_ERROR(ReadSettings(header));
  rpc::PayloadReader payload(frame);
  for (const common::v1::Record& record : header.records())
    SLUICE_RETURN_IF_ERROR(ReadRecord(record, &payload));
  if (payload.left() > 0)
    return absl::InvalidArgumentError(
        absl::StrCat("the payload has ", payload.left(), " bytes that no record's field names"));
  return absl::OkStatus();
}

absl::Status ScoreStream::ReadSettings(const engine::v1::ScoreHeader& header) {
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<http::Model> model, find_model_(header.call()));
  if (!header.policy().empty() && header.policy() != kPolicy) {
    return absl::NotFoundError(
        absl::StrCat("policy '", header.policy(), "' is not held here; there is '", kPolicy, "'"));
  }
  if (header.has_version()) version_ = rpc::FromProto(header.version());
  SLUICE_RETURN_IF_ERROR(CheckLoaded(*model, version_));
  if (header.temperature() != 0) temperature_ = static_cast<float>(header.temperature());
  SLUICE_RETURN_IF_ERROR(
      CheckSampling({.temperature = temperature_, .max_tokens = 1}, /*trainable=*/true));
  model_ = std::move(model);
  return absl::OkStatus();
}

absl::Status ScoreStream::ReadRecord(const common::v1::Record& record,
                                     rpc::PayloadReader* payload) {
  const bool of_group = !record.owner().has_member();
  if (reading_ != nullptr &&
      (of_group || !SameMember(reading_->records.back().owner(), record.owner())))
    SLUICE_RETURN_IF_ERROR(EndSequence());

  // A record of a group's prompt needs no computation, so it can be answered at once. One at
  // position 0 starts the prompt over.
  const bool known_group =
      !prompt_.records.empty() && prompt_.records.back().owner().group() == record.owner().group();
  if (of_group) {
    if (!known_group || record.piece().at() == 0) prompt_ = Sequence();
    SLUICE_RETURN_IF_ERROR(CheckPlace(record, prompt_));
    SLUICE_RETURN_IF_ERROR(ReadTokens(record, payload, &prompt_.tokens));
    prompt_.records = {WithoutFields(record)};
    prompt_.segment = record.piece().segment();
    auto answered = std::make_shared<Sequence>(Sequence{.records = prompt_.records, .done = true});
    return Enqueue(std::move(answered));
  }

  // A member's sequence begins with the prompt of its group, if that was sent.
  if (reading_ == nullptr) {
    reading_ = std::make_shared<Sequence>();
    if (known_group) reading_->tokens = prompt_.tokens, reading_->segment = prompt_.segment;
  }
  SLUICE_RETURN_IF_ERROR(CheckPlace(record, *reading_));
  SLUICE_RETURN_IF_ERROR(ReadTokens(record, payload, &reading_->tokens));
  reading_->records.push_back(WithoutFields(record));
  reading_->segment = record.piece().segment();
  return record.last() ? EndSequence() : absl::OkStatus();
}

absl::Status ScoreStream::CheckPlace(const common::v1::Record& record,
                                     const Sequence& sequence) const {
  const common::v1::Piece& piece = record.piece();
  if (piece.at() != sequence.tokens.size()) {
    return RecordError(
        record, absl::StrCat("the next piece must begin at ", sequence.tokens.size(),
                             "; send the group's prompt and then each member's pieces in order"));
  }
  // A further piece of the same segment has the parent of the first one.
  if (piece.has_parent() && piece.parent() != sequence.segment &&
      piece.segment() != sequence.segment) {
    return RecordError(record, absl::StrCat("its segment follows segment ", piece.parent(),
                                            ", but the last one is ", sequence.segment,
                                            "; send each branch as a member of its own"));
  }
  if (sequence.tokens.size() + piece.count() > model_->max_context()) {
    return RecordError(record, absl::StrCat("it ends at ", sequence.tokens.size() + piece.count(),
                                            "; this model's context holds ", model_->max_context(),
                                            " tokens: send fewer"));
  }
  return absl::OkStatus();
}

absl::Status ScoreStream::EndSequence() {
  if (reading_ == nullptr) return absl::OkStatus();
  if (reading_->tokens.size() < 2)
    return RecordError(
        reading_->records.back(),
        "the first token of a sequence has no log-prob; send tokens before it or after it too");
  return Enqueue(std::exchange(reading_, nullptr));
}

absl::Status ScoreStream::Enqueue(std::shared_ptr<Sequence> sequence) {
  {
    MutexLock lock(&mu_);
    bytes_ += sequence->bytes();
    if (bytes_ > kWindowBytes) {
      return Error(absl::StatusCode::kResourceExhausted, "WINDOW",
                   absl::StrCat("more than ", kWindowBytes,
                                " bytes of the stream are unanswered; wait for answers"));
    }
    if (!sequence->done) waiting_.push_back(sequence);
    unanswered_.push_back(std::move(sequence));
  }
  SubmitWaiting();
  Flush();
  return absl::OkStatus();
}

// On any thread. ----------------------------------------------------------------------------------

void ScoreStream::SubmitWaiting() {
  while (true) {
    std::shared_ptr<Sequence> next;
    {
      MutexLock lock(&mu_);
      if (closed_ || waiting_.empty() || in_engine_ == kMostInEngine) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      ++in_engine_;
    }

    std::vector<Request> requests = {MakeScoringRequest(next->tokens, temperature_)};
    requests[0].order = RequestClass::kEval;
    const absl::StatusOr<uint64_t> guest = guests_->Add(
        model_, std::move(requests), [self = shared_from_this(), next](const StepEvents& events) {
          self->TakeScores(next, events);
        });
    if (!guest.ok()) return End(guest.status());

    // If the call was closed meanwhile, OnClosed() did not know this guest.
    bool late = false;
    {
      MutexLock lock(&mu_);
      next->guest = *guest;
      late = closed_;
    }
    if (late) guests_->AbortGuest(*guest);
  }
}

void ScoreStream::TakeScores(const std::shared_ptr<Sequence>& sequence, const StepEvents& events) {
  if (!events.failures.empty()) return End(events.failures.front().status);
  const TokenEvent& event = events.tokens.front();
  if (absl::Status still = CheckSameVersion(version_, event.version); !still.ok())
    return End(std::move(still));

  std::vector<float> logprobs = ReadScores(event);
  logprobs.insert(logprobs.begin(), 0);
  if (std::any_of(logprobs.begin(), logprobs.end(),
                  [](float logprob) { return !std::isfinite(logprob); })) {
    return End(Error(absl::StatusCode::kDataLoss, "NONFINITE",
                     absl::StrCat("a trajectory of ", sequence->tokens.size(),
                                  " tokens has log-probs that are not finite under version ",
                                  event.version.str())));
  }

  {
    MutexLock lock(&mu_);
    sequence->logprobs = std::move(logprobs);
    sequence->version = event.version;
    sequence->done = true;
    --in_engine_;
  }
  Flush();
  SubmitWaiting();
}

absl::StatusOr<grpc::ByteBuffer> ScoreStream::Encode(const Sequence& sequence) {
  engine::v1::ScoreResponseHeader header;
  std::string payload;
  for (const common::v1::Record& record : sequence.records) {
    common::v1::Record& scored = *header.add_records();
    scored = record;
    if (sequence.logprobs.empty()) continue;
    common::v1::Piece& piece = *scored.mutable_piece();
    piece.clear_runs();
    *piece.add_runs() =
        rpc::ToProto(VersionRun{.version = sequence.version, .count = piece.count()});
    AddField("logprobs", common::v1::DTYPE_F32, {piece.count()},
             {reinterpret_cast<const char*>(sequence.logprobs.data() + piece.at()),
              piece.count() * sizeof(float)},
             &scored, &payload);
  }
  return rpc::EncodeFrame(header, {{.bytes = payload}});
}

void ScoreStream::Flush() {
  MutexLock lock(&mu_);
  while (!unanswered_.empty() && unanswered_.front()->done && pending() < kInFlight) {
    absl::StatusOr<grpc::ByteBuffer> frame = Encode(*unanswered_.front());
    if (!frame.ok()) return End(frame.status());
    bytes_ -= unanswered_.front()->bytes();
    unanswered_.pop_front();
    Send(*std::move(frame));
  }
  if (unanswered_.empty() && reads_done_) End(absl::OkStatus());
}

void ScoreStream::SendKeepalive() {
  if (pending() > 0) return;
  if (auto frame = rpc::EncodeFrame(engine::v1::ScoreResponseHeader(), {}); frame.ok())
    Send(*std::move(frame));
}

void ScoreStream::OnClosed() {
  std::vector<uint64_t> guests;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    for (const auto& sequence : unanswered_) {
      if (sequence->guest != 0 && !sequence->done) guests.push_back(sequence->guest);
    }
  }
  for (const uint64_t guest : guests) guests_->AbortGuest(guest);
}

}  // namespace sluice::rollout
