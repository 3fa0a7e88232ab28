#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/payload.h"
#include "services/queue/arena.h"
#include "services/queue/core/event.h"
#include "services/queue/core/job.h"
#include "sluice/queue/v1/queue.pb.h"

// Translates between messages and the core's structs. It only decides whether a message is well
// formed; if not, INVALID_ARGUMENT names the field.
namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace sluice::queue {

// Who makes a call, and for which job.
struct From {
  std::string job;
  Caller caller;
};
absl::StatusOr<From> FromProto(const common::v1::Call& call);
// The same for a call over the network, after a check that the certificate of its caller allows
// what it says (rpc::CheckJobRef()).
absl::StatusOr<From> ReadCaller(const grpc::ServerContextBase& context,
                                const common::v1::Call& call);
// The request id of Admit and LeaseTasks, which have no other key.
absl::StatusOr<Id16> RequestOf(const common::v1::Call& call);

absl::StatusOr<SetJob> FromProto(const v1::SetJobRequest& request);
absl::StatusOr<Admit> FromProto(const v1::AdmitRequest& request);
absl::StatusOr<Seal> FromProto(const v1::SealRequest& request);
absl::StatusOr<Drop> FromProto(const v1::DropRequest& request);
absl::StatusOr<LeaseTasks> FromProto(const v1::LeaseTasksRequest& request);
absl::StatusOr<Renew> FromProto(const v1::RenewRequest& request);
absl::StatusOr<Release> FromProto(const v1::ReleaseRequest& request);
absl::StatusOr<AcquireBatch> FromProto(const v1::AcquireBatchRequest& request);
absl::StatusOr<queue::Apply> FromProto(const v1::ApplyRequest& request);
absl::StatusOr<AdvanceVersion> FromProto(const v1::AdvanceVersionRequest& request);
absl::StatusOr<Durable> FromProto(const v1::DurableRequest& request);
absl::StatusOr<Restore> FromProto(const v1::RestoreRequest& request);
absl::StatusOr<Retask> FromProto(const v1::RetaskRequest& request);
absl::StatusOr<Want> FromProto(const common::v1::Want& want);

void ToProto(const SetJobAnswer& answer, v1::SetJobResponse* out);
void ToProto(const AdmitAnswer& answer, const Sampling& sampling, v1::AdmitResponse* out);
void ToProto(const ItemsAnswer& answer, v1::SealResponse* out);
void ToProto(const ItemsAnswer& answer, v1::DropResponse* out);
void ToProto(const LeaseTasksAnswer& answer, v1::LeaseTasksResponse* out);
void ToProto(const RenewAnswer& answer, v1::RenewResponse* out);
void ToProto(const ReleaseAnswer& answer, v1::ReleaseResponse* out);
void ToProto(const AcquireBatchAnswer& answer, v1::AcquireBatchResponse* out);
void ToProto(const ApplyAnswer& answer, v1::ApplyResponse* out);
void ToProto(const AdvanceVersionAnswer& answer, v1::AdvanceVersionResponse* out);
void ToProto(const DurableAnswer& answer, v1::DurableResponse* out);
void ToProto(const RestoreAnswer& answer, v1::RestoreResponse* out);
void ToProto(const RetaskAnswer& answer, v1::RetaskResponse* out);
void ToProto(const StatsAnswer& answer, v1::StatsResponse* out);
void ToProto(const PeekRow& row, v1::PeekRow* out);
void ToProto(const WaitEdge& edge, common::v1::WaitEdge* out);
void ToProto(const Ledger& ledger, common::v1::Ledger* out);
void ToProto(const Loaded& loaded, common::v1::Loaded* out);
void ToProto(const TrajectoryRef& ref, common::v1::TrajectoryRef* out);
void ToProto(const Want& want, common::v1::Want* out);

// The records of a Put message that are well formed, and the failures of those that are not.
struct PutBatch {
  std::vector<Record> records;
  std::vector<uint32_t> places;  // Index in the message of each record.
  std::vector<Failed> failed;
};

// Reads the records of one Put stream. It copies their payload into the arena, checks the CRC of
// each field, and joins records that are cut over several messages. One record gets at most
// `record_bytes` of memory, whatever size it claims. Not thread-safe.
class RecordReader {
 public:
  // `arena` outlives the reader.
  RecordReader(Arena* arena, uint64_t record_bytes) : arena_(arena), record_bytes_(record_bytes) {}
  // INVALID_ARGUMENT: the message as a whole is malformed.
  absl::StatusOr<PutBatch> Read(const v1::PutHeader& header, const rpc::Frame& frame);

 private:
  struct Partial {  // A record whose last part has not come yet.
    Record record;
    uint64_t bytes = 0;
    // Not OK: the record cannot be stored, and its other parts are ignored.
    absl::Status status;
    std::shared_ptr<char> memory;  // Memory of the last field, if that is cut.
    // Bytes of that field that have come, and its size. filled <= total.
    uint64_t filled = 0, total = 0;
  };
  Partial BeginRecord(const common::v1::Record& in, bool first);
  void ReadFields(const common::v1::Record& in, rpc::PayloadReader* payload, Partial* partial);
  absl::Status ReadField(const common::v1::Field& in, rpc::PayloadReader* payload,
                         std::shared_ptr<char> memory, uint64_t offset, Partial* partial);

  Arena* const arena_;
  const uint64_t record_bytes_;
  std::optional<Partial> partial_;
};

// Convert a record without its fields, and a field without its bytes, as Get sends them.
void ToProto(const Record& record, common::v1::Record* out);
void ToProto(const Field& field, common::v1::Field* out);

}  // namespace sluice::queue
