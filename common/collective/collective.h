#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/collective/port_range.h"
#include "common/collective/rendezvous.h"

namespace sluice {

// One rank's end of a group of processes that move numbers to each other: those that train one
// model together, or that a version of the weights is broadcast to. JoinC10d() makes one.
//
// All ranks make the same calls in the same order, with spans of equal sizes. Each call first waits
// until every rank has come to it, however long another rank computes before; only then does a
// timeout count. After an error the group is of no use any more: destroy it, and form a new one.
// Errors:
//   UNAVAILABLE RANK_LOST   a rank is gone, or has not moved its data within the timeout
//   CANCELLED               Abort() was called
//
// One thread uses it, but for Abort().
class Collective {
 public:
  struct Options {
    int rank = 0;
    int world = 1;
    // Address or host name of this machine at which the other ranks reach this one.
    std::string host = "127.0.0.1";
    // This rank listens on the first of these ports that is free. Two groups have two ports.
    PortRange ports;
    // For the data of Sum(), SumTo(), Broadcast() and Gather(), and for each bucket of a stream.
    absl::Duration timeout = absl::Seconds(120);
    // How long this rank waits until all ranks have come.
    absl::Duration meet = absl::InfiniteDuration();
    // For connecting each rank with each once all have come, which takes milliseconds. Nothing but
    // its end can stop this wait for a rank that was lost meanwhile.
    absl::Duration connect = absl::Seconds(10);
  };

  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Replaces the values by their sums over all ranks. The sums have the same bits on all ranks.
  virtual absl::Status Sum(absl::Span<float> values) = 0;
  virtual absl::Status Sum(absl::Span<double> values) = 0;
  // The same, but only rank `root` gets the sums. The values of the others are undefined then.
  virtual absl::Status SumTo(int root, absl::Span<float> values) = 0;
  // Copies the values of rank `root` to all ranks.
  virtual absl::Status Broadcast(int root, absl::Span<float> values) = 0;
  // Copies the values of rank `from` to rank `to`. The other ranks need not call it, and return at
  // once if they do.
  virtual absl::Status Transfer(int from, int to, absl::Span<float> values) = 0;
  // Returns what each rank has passed, in order of rank. The lengths may differ.
  virtual absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine) = 0;

  // Rank 0 calls Send(), and all others Receive(), which waits for as long as it takes.
  virtual absl::Status Send(std::string message) = 0;
  virtual absl::StatusOr<std::string> Receive() = 0;

  // Begins a stream of `bytes` from rank 0 through all ranks, from each to the next, in buckets of
  // `bucket_bytes`, of which the last may be smaller. So each link carries the bytes once. Unlike
  // the calls above, a stream waits for no rank without end, but for the timeout with each bucket.
  // A rank that is gone ends it for those behind it, and for rank 0 if it was the first of them.
  virtual absl::Status StartStream(uint64_t bytes, uint64_t bucket_bytes) = 0;
  // Returns the next bucket, which is valid until the next call. Rank 0 fills it before that call;
  // to the others it has come. Empty: it was the last one, and it has left this rank.
  virtual absl::StatusOr<absl::Span<char>> NextBucket() = 0;

  // Ends the waits for other ranks, now and later, and a stream. Another transfer of data that is
  // under way goes on until its end, or until the timeout. From any thread.
  virtual void Abort() = 0;
};

// Makes this process a rank of a group, as JoinC10d() does. Code that may have to join one is given
// this function, and so does not load LibTorch in programs that never do.
using JoinCollective = std::function<absl::StatusOr<std::unique_ptr<Collective>>(
    const Collective::Options&, Rendezvous*)>;

// FAILED_PRECONDITION: `worker` was started without an address for other ranks, which `wish` needs.
absl::Status NoCollectiveHostError(absl::string_view worker, absl::string_view wish);

}  // namespace sluice
