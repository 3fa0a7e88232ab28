// The process group of Gloo, which moves bytes between CPUs by TCP.
#include <gloo/transport/tcp/socket.h>
#include <netinet/in.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/backend.h"

namespace sluice {
namespace {

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

// A rendezvous as c10d wants it. It expects errors as exceptions.
class Store : public c10d::Store {
 public:
  Store(Rendezvous* rendezvous, absl::Duration timeout)
      : c10d::Store(Milliseconds(timeout)), rendezvous_(rendezvous) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<Store>(rendezvous_, absl::FromChrono(timeout_));
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    const absl::Status status = rendezvous_->Set(key, std::string(value.begin(), value.end()));
    if (!status.ok()) throw std::runtime_error(status.ToString());
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = Get(key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) Get(key, timeout);
  }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (!rendezvous_->Get(key, absl::ZeroDuration()).ok()) return false;
    }
    return true;
  }
  // Gloo needs none of these.
  int64_t add(const std::string&, int64_t) override { throw std::runtime_error("add"); }
  bool deleteKey(const std::string&) override { throw std::runtime_error("deleteKey"); }
  int64_t getNumKeys() override { throw std::runtime_error("getNumKeys"); }

 private:
  std::string Get(const std::string& key, std::chrono::milliseconds timeout) {
    absl::StatusOr<std::string> value = rendezvous_->Get(key, absl::FromChrono(timeout));
    if (!value.ok()) throw std::runtime_error(value.status().ToString());
    return *std::move(value);
  }

  Rendezvous* const rendezvous_;
};

absl::Status NotMetError(const Collective::Options& options, absl::string_view why) {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST",
               absl::StrCat("rank ", options.rank, " of ", options.world,
                            " did not meet the other ranks: ", why));
}

using Device = std::shared_ptr<gloo::transport::Device>;

// The ports of a range that are still to be tried, for the thread that makes a device.
struct PortSearch {
  int next = 0, last = 0;
  bool bound = false;  // A socket was bound to the port before `next`.
  std::string error;   // Why the last one was not free.
};
thread_local PortSearch* port_search = nullptr;

absl::Status NotOwnAddressError(const std::string& host, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("ranks cannot be reached on the address ", host, " of this machine: ", why));
}

absl::Status NoFreePortError(const PortRange& ports, const std::string& host,
                             absl::string_view why) {
  return ErrorWith(
      absl::StatusCode::kResourceExhausted,
      {.hint = "end what listens there, or start this daemon with more --collective-ports: a rank "
               "of a trainer needs two, and one of a broadcast needs one"},
      absl::StrCat("no port of ", ports.text(), " is free for a rank on ", host, ": ", why));
}

absl::StatusOr<Device> ListenOnOneOf(const PortRange& ports, const std::string& host) {
  PortSearch search{ports.first, ports.last};
  port_search = &search;
  const absl::Cleanup reset = [] { port_search = nullptr; };
  while (true) {
    search.bound = false;
    try {
      Device device = c10d::ProcessGroupGloo::createDeviceForHostname(host);
      if (search.bound) return device;
      return absl::UnimplementedError(
          "the Gloo of this LibTorch listens on ports of its own choice; start this daemon "
          "without --collective-ports");
    } catch (const std::exception& e) {
      // Another rank can have bound the same port, and have been the first to listen on it.
      if (search.bound) search.error = FirstLine(e);
      else if (search.next <= search.last) return NotOwnAddressError(host, FirstLine(e));
      if (search.next > search.last) return NoFreePortError(ports, host, search.error);
    }
  }
}

absl::StatusOr<Device> Listen(const Collective::Options& options) {
  if (!options.ports.any()) return ListenOnOneOf(options.ports, options.host);
  try {
    return c10d::ProcessGroupGloo::createDeviceForHostname(options.host);
  } catch (const std::exception& e) {
    return NotOwnAddressError(options.host, FirstLine(e));
  }
}

// Waits until all ranks have come. Gloo could do that too, but it has one timeout for this wait and
// for that of a rank which came and was lost before it was connected.
absl::Status Meet(const Collective::Options& options, Rendezvous* rendezvous) {
  const auto key = [](int rank) { return absl::StrCat("here/", rank); };
  absl::Status status = rendezvous->Set(key(options.rank), "");
  for (int rank = 0; status.ok() && rank < options.world; ++rank)
    status = rendezvous->Get(key(rank), options.meet).status();
  return status.ok() ? status : NotMetError(options, status.message());
}

}  // namespace
}  // namespace sluice

// Takes the place of Gloo's own function of this name (gloo_headers/README.md).
void gloo::transport::tcp::Socket::bind(const sockaddr_storage& address) {
  sockaddr_storage own = address;
  in_port_t& port = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&own)->sin_port;
  const auto bind_own = [&] {
    const bool six = address.ss_family == AF_INET6;
    bind(reinterpret_cast<const sockaddr*>(&own), six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  };

  sluice::PortSearch* const search = sluice::port_search;
  if (search == nullptr) return bind_own();
  while (search->next <= search->last) {
    port = htons(static_cast<uint16_t>(search->next++));
    try {
      bind_own();
      search->bound = true;
      return;
    } catch (const std::exception& e) {
      search->error = sluice::FirstLine(e);
    }
  }
  throw std::runtime_error(search->error);
}

namespace sluice {

std::string FirstLine(const std::exception& e) {
  const std::string what = e.what();
  return what.substr(0, what.find('\n'));
}

absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> MakeBackend(const Collective::Options& options,
                                                              Rendezvous* rendezvous) {
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo =
      c10d::ProcessGroupGloo::Options::create(Milliseconds(options.connect));
  gloo->threads = 1;  // One call is under way at a time.
  SLUICE_ASSIGN_OR_RETURN(Device device, Listen(options));
  gloo->devices.push_back(std::move(device));
  SLUICE_RETURN_IF_ERROR(Meet(options, rendezvous));
  try {
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<Store>(rendezvous, options.connect), options.rank, options.world,
        std::move(gloo));
    group->setTimeout(Milliseconds(options.timeout));
    return group;
  } catch (const std::exception& e) {
    return NotMetError(options, FirstLine(e));
  }
}

}  // namespace sluice
