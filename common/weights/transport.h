#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/rl/version.h"
#include "common/weights/relay_chain.h"

// The ways to get manifests and chunks from somebody who has them. Each transport does the same in
// its own way; who is asked, in which order, and what is believed is decided in one place for all
// of them (ObjectFetcher).
namespace google::protobuf {
class Message;
}
namespace sluice {

namespace common::v1 {
class Call;
}
namespace rpc {
class Cancel;
struct CallOptions;
}  // namespace rpc
namespace weights::v1 {
class ListResponse;
}

// Who fetches weights.
struct WeightCaller {
  std::string job;          // 32 hex digits.
  std::string worker;       // This daemon's id.
  int64_t incarnation = 0;  // 0 for a command-line tool, which is not a registered worker.
};
// The part of a request that names job, worker and incarnation.
common::v1::Call MakeCall(const WeightCaller& caller);

// What a transport can do and needs. PlanHolders() chooses by it.
struct TransportCaps {
  absl::string_view name;           // As reports and metrics call it.
  bool same_host = false;           // Holder and receiver must be on one host.
  bool reads_memory = false;        // Over UCX, which both must have.
  bool needs_folder = false;        // `weights.dir` must be set, and both must see it.
  bool waits = false;               // What the holder is still receiving can be waited for.
  bool outlives_publisher = false;  // It works when the trainer is gone.
  bool broadcasts = false;          // It brings whole versions only, to several receivers at once.
  bool calls = false;               // It makes unary calls to the holder too.
};
inline constexpr TransportCaps kGrpcCaps = {.name = "grpc", .waits = true, .calls = true};
inline constexpr TransportCaps kShmCaps = {.name = "shm", .same_host = true, .waits = true};
inline constexpr TransportCaps kUcxCaps = {.name = "ucx", .reads_memory = true, .waits = true};
inline constexpr TransportCaps kFileCaps = {
    .name = "file", .needs_folder = true, .outlives_publisher = true};
inline constexpr TransportCaps kC10dCaps = {.name = "c10d", .broadcasts = true};

// No transport gives an object that is larger.
inline constexpr uint64_t kMaxObjectBytes = 64 << 20;

// The beginning of an object's id, for people.
std::string ShortObjectId(const std::string& id);

// The objects that one holder is asked for, and which of them have not come yet. Not thread-safe.
class WantedObjects {
 public:
  // Gets an object that has come. It must copy what it keeps. An error ends the fetch.
  using Taker = std::function<absl::Status(const std::string& id, absl::string_view object)>;
  // `ids` outlives this object. `on_progress` is called whenever something has come, with the
  // number of bytes.
  WantedObjects(absl::Span<const std::string> ids, Taker taker,
                std::function<void(uint64_t bytes)> on_progress);

  absl::Span<const std::string> ids() const { return ids_; }
  // Whether the object with this index has neither come nor is missing.
  bool is_open(size_t index) const { return open_[index]; }
  size_t left() const { return left_; }  // Objects that are open.
  const std::string& first_open() const;

  // Bytes have come, which need not be a whole object, nor one that is new or right.
  void AddReceived(uint64_t bytes) { on_progress_(bytes); }
  // A whole object has come, which must be open. It is passed on if its bytes have the SHA-256 that
  // names it.
  // DATA_LOSS BAD_DIGEST: they have another one.
  // Other errors are those of the taker; taker_failed() is true then.
  absl::Status Take(size_t index, absl::string_view object);
  // The holder does not have the object with this index.
  void AddMissing(size_t index);

  bool taker_failed() const { return taker_failed_; }
  // Those that have not come, the missing ones too, in their order.
  std::vector<std::string> ListNotArrived() const;
  // OK if none is missing. NOT_FOUND: the first that is, by the name of the holder.
  absl::Status CheckMissing(absl::string_view holder) const;

 private:
  void Close(size_t index);

  const absl::Span<const std::string> ids_;
  const Taker taker_;
  const std::function<void(uint64_t bytes)> on_progress_;
  std::vector<bool> open_, arrived_;
  size_t left_;
  std::optional<size_t> missing_;  // The first that was found missing.
  bool taker_failed_ = false;
};

// The chunks of a whole version, which are fetched part by part in the order of its manifest.
struct WholeVersion {
  std::string manifest;  // Its id.
  std::vector<std::string> ids;
  std::vector<uint64_t> bytes;  // Of each.
  size_t end = 0;               // The part that is fetched ends before this chunk.
};

// How one holder is asked.
struct FetchTerms {
  PolicyVersion version;  // For which the objects are wanted.
  // Set if the objects are chunks of a whole version.
  const WholeVersion* whole = nullptr;
  std::string key;   // Of the holder, in the history.
  std::string name;  // Of the holder, for people.
  // A patient caller has nobody else to ask: the holder is not left for being silent, slow or
  // starved.
  bool is_patient = false;
  // The limit of silence is multiplied by this.
  int patience = 1;
  HolderHistory* history = nullptr;
  rpc::Cancel* cancel = nullptr;  // May be null.
  Clock* clock = Clock::Real();
};

// How the fetch from one holder has ended.
struct FetchEnd {
  // OK: all objects have come. NOT_FOUND without a fault: all that the holder has have come.
  absl::Status status;
  std::optional<HolderFault> fault;  // Why the holder is to be left.
};

// A way to get objects from one holder. One thread at a time may call it.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const TransportCaps& caps() const = 0;

  // Gets the open objects of `wanted`, in any order, and returns when each has come or is missing,
  // or something has gone wrong. Nothing that comes is believed without its SHA-256.
  // CANCELLED, at once: the cancel token was triggered.
  // DATA_LOSS with kLied: what came is not what was asked for.
  // DEADLINE_EXCEEDED with kSilent: nothing came in time.
  virtual FetchEnd Fetch(const FetchTerms& terms, WantedObjects* wanted) = 0;

  // Lists the manifests that the holder keeps, without a call.
  // UNIMPLEMENTED: this transport only fetches; the holder is asked by a call.
  virtual absl::Status List(weights::v1::ListResponse* list);
  // Makes a unary call to the holder, as rpc::Call() does.
  // UNIMPLEMENTED: this transport makes none.
  virtual absl::Status Call(const google::protobuf::Message& request,
                            google::protobuf::Message* response, const rpc::CallOptions& options);
};

}  // namespace sluice
