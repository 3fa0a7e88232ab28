#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

// One process reads the memory of another over UCX (openucx.org, BSD licence), by RDMA or through
// shared memory: without the help of the other one's threads.
//
// UCX encrypts nothing, and trusts everyone: who can connect to one of the devices can read and
// write all memory of the process. So `devices` must be in a network that nobody else reaches.
// They are named as in UCX_NET_DEVICES: "mlx5_0:1". "shm" uses no network, only shared memory of
// processes of one host and user.
//
// TCP is not used, unless the environment variable UCX_TLS names it, which is for tests: UCX
// emulates RDMA over TCP by messages, and version 1.13 ends the process whose memory is read when a
// reader dies meanwhile. Other settings of UCX are also read from its environment variables. Where
// these do not say otherwise, UCX installs no signal handlers, patches no function of libc, and is
// silent.
//
// All calls have these errors:
//   UNIMPLEMENTED        this build has no UCX
//   FAILED_PRECONDITION  libucp cannot be loaded, or does not work with these devices
namespace sluice {

inline constexpr absl::string_view kUcxSharedMemory = "shm";

// Whether a process of this host can read memory over these devices: it tries it.
absl::Status TryUcx(const std::string& devices);

// Where bytes lie in the memory of another process.
struct UcxPlace {
  std::string worker;  // Address of the UCX worker, as bytes.
  std::string key;     // Gives the right to read, as bytes.
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// Memory that others can read. Thread-safe. Owns a thread, `sluice-ucx`, which connects readers and
// otherwise sleeps.
class UcxHost {
 public:
  static absl::StatusOr<std::unique_ptr<UcxHost>> Start(const std::string& devices);
  ~UcxHost();

  const std::string& worker() const;  // See UcxPlace.

  struct Memory {
    char* data = nullptr;
    uint64_t bytes = 0;
    std::string key;
  };
  // Makes memory, which can be read until the host ends: a reader that comes late reads something
  // else than it wants, but never memory that is used otherwise.
  // RESOURCE_EXHAUSTED: there is none, or it cannot be registered.
  absl::StatusOr<Memory> Allocate(uint64_t bytes);

 private:
  class Impl;
  explicit UcxHost(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// A connection to one host. One thread at a time uses it, except for Interrupt().
class UcxReader {
 public:
  // It can read up to `most_bytes` at once. It may return before the host has answered.
  // UNAVAILABLE: the host is gone, or no device leads to it.
  static absl::StatusOr<std::unique_ptr<UcxReader>> Connect(const std::string& devices,
                                                            const std::string& worker,
                                                            uint64_t most_bytes);
  ~UcxReader();

  const std::string& worker() const;  // Of the host.

  // Reads into memory of this object, which the next call overwrites. After an error the reader is
  // of no use any more.
  // INVALID_ARGUMENT: the place is of another worker or too large, or its key is none.
  // DEADLINE_EXCEEDED: the bytes have not come before `deadline`, on the monotonic clock.
  // CANCELLED: it was interrupted.
  // UNAVAILABLE: the host is gone.
  absl::StatusOr<absl::string_view> Read(const UcxPlace& place, absl::Duration deadline);
  // Ends Read(), now and later. From any thread.
  void Interrupt();

 private:
  class Impl;
  explicit UcxReader(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
