#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "common/rpc/cancel.h"
#include "common/weights/relay_chain.h"
#include "common/weights/transport.h"

namespace sluice {
class WeightRelay;
namespace weights::v1 {
class ListRequest;
class ListResponse;
}  // namespace weights::v1

// What the history calls a holder that is asked by this transport. The faults of memory that is
// shared or read over UCX, or of a broadcast, say nothing against the daemon that it belongs to.
std::string HolderKey(const std::string& id, const TransportCaps& caps);

// Downloads the objects of one version (manifests and chunks, named by their SHA-256) from those
// that hold them, each in its own way (Transport). The SHA-256 of each object is checked, so no
// holder can pass off one object as another.
//
// The holders are asked in order. One that fails, is silent, slow or starved, or sends what was not
// asked for, is left for the next one, which is asked only for what has not arrived. The trainer,
// if it is the last one, has all the time of the stream. What a holder does not have is asked of
// the next one, too, but the holder keeps its place. One who has the objects may be in the list
// more than once, with another transport each time.
//
// One thread uses it, except for wait() and TellOrigin(), which are thread-safe.
class ObjectFetcher {
 public:
  struct Holder {
    std::string id;  // kOriginId: the trainer. kFolderId: the folder `weights.dir`.
    std::shared_ptr<Transport> transport;
    std::string why;  // Why this transport was chosen for it, for people.
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
    // How the trainer is told what is fetched. Deferred: on this thread, before anything is.
    std::launch tell = std::launch::async;
    Clock* clock = Clock::Real();
  };
  explicit ObjectFetcher(Options options);

  // Copies what it keeps of the object.
  using ObjectHandler = std::function<absl::Status(absl::string_view object)>;
  // Downloads objects and passes each to `on_object`, in any order. A failure of `on_object` ends
  // the download with its error. `whole` is not null if they are a part of a whole version.
  // CANCELLED: `cancel` was triggered.
  // NOT_FOUND: nobody has an object.
  // DATA_LOSS: the trainer sent other bytes than were asked for.
  // Other errors are those of the trainer, or of the last holder.
  absl::Status Fetch(absl::Span<const std::string> ids, const ObjectHandler& on_object,
                     const WholeVersion* whole = nullptr);

  // Asks the trainer which versions it keeps. If it is gone, the others are asked in order, until
  // `is_useful` says of an answer that it helps. Returns the id of the one that answered.
  absl::StatusOr<std::string> AskForList(const weights::v1::ListRequest& request,
                                         weights::v1::ListResponse* response,
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
    uint64_t bytes = 0;  // Received, of pieces.
    uint64_t used = 0;   // Of these, bytes of objects that were whole, right and new.
    std::map<std::string, uint64_t> used_by_transport;
    int holders_left = 0;   // How many holders were left.
    std::string parent;     // The holder that sent the last object.
    std::string transport;  // By which it came, and why that was chosen.
    std::string why;
    std::string last_fault;  // "rollout-2 lied: ..". Empty: none.
    std::string lister;      // Who gave the answer to the last AskForList().
  };
  const Stats& stats() const { return stats_; }
  WeightRelay* relay() const { return options_.relay; }
  rpc::Cancel* cancel() const { return options_.cancel; }
  PolicyVersion version() const { return options_.version; }
  bool hearsay() const { return options_.hearsay; }
  std::launch tell() const { return options_.tell; }
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
  // Takes from *wanted what arrives. Sets *handler_failed if the error is that of the handler.
  FetchEnd FetchFrom(const Holder& holder, bool is_last, std::vector<std::string>* wanted,
                     const ObjectHandler& on_object, const WholeVersion* whole,
                     bool* handler_failed);
  // By which the trainer is called; null if there is no trainer.
  Transport* FindOrigin() const;
  // `key` is that of the holder in the history.
  void LeaveHolder(const std::string& key, HolderFault fault, const absl::Status& why);
  bool cancelled() const;
  void SetWait(const std::string& object, const std::string& holder, size_t objects)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ClearWait() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const bool alone_;                       // There is one holder, or nobody but the trainer.
  size_t current_ = 0;                     // Holders before it were left.
  std::atomic<bool> origin_gone_ = false;  // It did not answer a call.
  bool holders_failed_ = false;
  absl::Status last_error_;  // Of a holder that was left.
  Stats stats_;

  mutable Mutex mu_;
  std::optional<Wait> wait_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
