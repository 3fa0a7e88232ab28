#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"
#include "common/weights/relay_chain.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf
namespace sluice {
class WeightRelay;
namespace common::v1 {
class Call;
}

// Who fetches weights.
struct WeightCaller {
  std::string job;          // 32 hex digits.
  std::string worker;       // This daemon's id.
  int64_t incarnation = 0;  // 0 for a command-line tool, which is not a registered worker.
};
// The part of a request that names job, worker and incarnation.
common::v1::Call MakeCall(const WeightCaller& caller);

// Downloads the objects of one version (manifests and chunks, named by their SHA-256) from those
// that hold them. It checks the CRC of each message and the SHA-256 of each object, so no holder
// can pass off one object as another.
//
// The holders are asked in order. One that fails, is silent, slow or starved, or sends what was not
// asked for, is left for the next one, which is asked only for what has not arrived. The trainer,
// if it is the last one, has all the time of the stream. What a holder does not have is asked of
// the next one, too, but the holder keeps its place.
//
// One thread uses it, except for wait() and TellOrigin(), which are thread-safe.
class ObjectFetcher {
 public:
  struct Holder {
    std::string id;  // kOriginId: the trainer.
    // Outlives the fetcher.
    const rpc::Channel* channel = nullptr;
  };
  struct Options {
    WeightCaller caller;
    PolicyVersion version;        // For which the objects are fetched.
    bool hearsay = false;         // Whether only another rollout has announced it.
    std::vector<Holder> holders;  // At least one.
    // Where objects are kept for other rollouts. What it has already is not downloaded. May be
    // null, and outlives the fetcher.
    WeightRelay* relay = nullptr;
    // What is known about the holders, and is learned here. Outlives the fetcher.
    HolderHistory* history = nullptr;
    rpc::Cancel* cancel = nullptr;  // May be null.
    Clock* clock = Clock::Real();
  };
  explicit ObjectFetcher(Options options);

  using ObjectHandler = std::function<absl::Status(std::string object)>;
  // Downloads objects and passes each to `on_object`, in any order. A failure of `on_object` ends
  // the download with its error.
  // CANCELLED: `cancel` was triggered.
  // NOT_FOUND: nobody has an object.
  // DATA_LOSS: the trainer sent other bytes than were asked for.
  // Other errors are those of the trainer, or of the last holder.
  absl::Status Fetch(absl::Span<const std::string> ids, const ObjectHandler& on_object);

  // Makes a unary call to the trainer. If it is gone, the others are asked in order, until
  // `is_useful` says of an answer that it helps. Returns the id of the one that answered.
  absl::StatusOr<std::string> Ask(const google::protobuf::Message& request,
                                  google::protobuf::Message* response,
                                  const std::function<bool()>& is_useful);
  // Makes a unary call to the trainer. While others hold the version, it may be gone. May be called
  // from any thread.
  absl::Status TellOrigin(const google::protobuf::Message& request,
                          google::protobuf::Message* response, rpc::Cancel* cancel);

  // Whether the last Fetch() failed because of holders, not because of what the objects say.
  bool holders_failed() const { return holders_failed_; }

  // Leaves a holder because of an object or an answer that came from it.
  void Distrust(const std::string& holder, const absl::Status& why);

  struct Stats {
    uint64_t bytes = 0;      // Received, of pieces.
    uint64_t used = 0;       // Of these, bytes of objects that were whole, right and new.
    int holders_left = 0;    // How many holders were left.
    std::string parent;      // The holder that sent the last object.
    std::string last_fault;  // "rollout-2 lied: ..". Empty: none.
    std::string lister;      // Who gave the answer to the last Ask().
  };
  const Stats& stats() const { return stats_; }
  WeightRelay* relay() const { return options_.relay; }
  rpc::Cancel* cancel() const { return options_.cancel; }
  PolicyVersion version() const { return options_.version; }
  bool hearsay() const { return options_.hearsay; }
  const WeightCaller& caller() const { return options_.caller; }

  // What it waits for.
  struct Wait {
    std::string object;    // The beginning of its id, in hex.
    std::string holder;    // Id of the holder; kOriginId: the trainer.
    absl::Duration since;  // On the monotonic clock.
    size_t objects = 0;    // How many objects of this request have not come.
    PolicyVersion version;
  };
  std::optional<Wait> wait() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Outcome {
    absl::Status status;               // OK: all that the holder has of `wanted` has arrived.
    std::optional<HolderFault> fault;  // Why the holder is to be left.
    bool handler_failed = false;       // `status` is that of the handler.
  };
  class Assembly;
  // Takes from *wanted what arrives. `is_patient`: the holder is not left for being silent, slow or
  // starved.
  Outcome FetchFrom(const Holder& holder, bool is_patient, std::vector<std::string>* wanted,
                    const ObjectHandler& on_object);
  void LeaveHolder(const Holder& holder, HolderFault fault, const absl::Status& why);
  bool cancelled() const;
  void SetWait(const std::string& object, const std::string& holder, size_t objects)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ClearWait() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  size_t current_ = 0;                     // Holders before it were left.
  std::atomic<bool> origin_gone_ = false;  // It did not answer a call.
  bool holders_failed_ = false;
  absl::Status last_error_;  // Of a holder that was left.
  Stats stats_;

  mutable Mutex mu_;
  std::optional<Wait> wait_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
