#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceType.h>
#include <gloo/transport/tcp/socket.h>
#include <netinet/in.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/collective/collective.h"

namespace sluice {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

// A wait that only Abort() or the loss of a rank ends.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
// Largest piece of one call to Gloo, in elements, which bounds its buffers.
constexpr size_t kPiece = size_t{1} << 24;

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

template <typename T>
at::Tensor TensorOf(absl::Span<T> values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())},
                       c10::CppTypeToScalarType<T>::value);
}

// What went wrong, without the stack trace that torch puts behind it.
std::string FirstLine(const std::exception& e) {
  const std::string what = e.what();
  return what.substr(0, what.find('\n'));
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
      {.hint = "end what listens there, or start the trainers with more --collective-ports: a "
               "rank needs one, and with trainer.shard two"},
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
          "the Gloo of this LibTorch listens on ports of its own choice; start the trainers "
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
  return status.ok() ? status : NotMetError(options, status.ToString());
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

class Collective::Impl {
 public:
  Impl(const Options& options, c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : options_(options), group_(std::move(group)) {}

  int rank() const { return options_.rank; }
  int world() const { return options_.world; }

  // Calls `start`, which starts some work of the group, and waits until it is done.
  template <typename Start>
  absl::Status Run(Start start) {
    try {
      start()->wait();
      return absl::OkStatus();
    } catch (const std::exception& e) {
      return Lost(FirstLine(e));
    }
  }

  // Runs `start` for one piece of the values after the other.
  template <typename T, typename Start>
  absl::Status RunPieces(absl::Span<T> values, Start start) {
    SLUICE_RETURN_IF_ERROR(Align());
    for (size_t first = 0; first < values.size(); first += kPiece) {
      std::vector<at::Tensor> piece = {TensorOf(values.subspan(first, kPiece))};
      SLUICE_RETURN_IF_ERROR(Run([&] { return start(piece); }));
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Sum(absl::Span<T> values) {
    return RunPieces(values,
                     [&](std::vector<at::Tensor>& piece) { return group_->allreduce(piece); });
  }

  absl::Status SumTo(int root, absl::Span<float> values) {
    c10d::ReduceOptions options;
    options.rootRank = root;
    return RunPieces(
        values, [&](std::vector<at::Tensor>& piece) { return group_->reduce(piece, options); });
  }

  template <typename T>
  absl::Status Broadcast(int root, absl::Span<T> values) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return RunPieces(
        values, [&](std::vector<at::Tensor>& piece) { return group_->broadcast(piece, options); });
  }

  absl::Status Transfer(int from, int to, absl::Span<float> values) {
    if (from == to || (rank() != from && rank() != to)) return absl::OkStatus();
    for (size_t first = 0; first < values.size(); first += kPiece) {
      const absl::Span<float> piece = values.subspan(first, kPiece);
      SLUICE_RETURN_IF_ERROR(rank() == from ? SendTo(to, piece) : ReceiveFrom(from, piece));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine) {
    std::vector<int64_t> sizes(static_cast<size_t>(world()), 0);
    sizes[rank()] = static_cast<int64_t>(mine.size());
    SLUICE_RETURN_IF_ERROR(Sum(absl::MakeSpan(sizes)));
    std::vector<std::string> all;
    for (int root = 0; root < world(); ++root) {
      std::string bytes = root == rank() ? std::string(mine) : std::string(sizes[root], '\0');
      SLUICE_RETURN_IF_ERROR(BroadcastBytes(root, bytes));
      all.push_back(std::move(bytes));
    }
    return all;
  }

  absl::Status Send(std::string message) {
    int64_t size = static_cast<int64_t>(message.size());
    for (int to = 1; to < world(); ++to) SLUICE_RETURN_IF_ERROR(SendTo(to, One(&size)));
    return BroadcastBytes(0, message);
  }

  absl::StatusOr<std::string> Receive() {
    int64_t size = 0;
    SLUICE_RETURN_IF_ERROR(ReceiveFrom(0, One(&size)));
    std::string message(static_cast<size_t>(size), '\0');
    SLUICE_RETURN_IF_ERROR(BroadcastBytes(0, message));
    return message;
  }

  void Abort() {
    MutexLock lock(&mu_);
    aborted_ = true;
    if (waits_for_) waits_for_->abort();
  }

 private:
  absl::Status Lost(absl::string_view what) {
    return Error(absl::StatusCode::kUnavailable, "RANK_LOST",
                 absl::StrCat("rank ", rank(), " of ", world(), " lost another rank: ", what));
  }

  absl::Status BroadcastBytes(int root, std::string& bytes) {
    return Broadcast(root, absl::MakeSpan(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()));
  }

  // Waits until all ranks have come here. Rank 0 hears of each, and then tells each.
  absl::Status Align() {
    int64_t mark = 0;
    if (rank() != 0) {
      SLUICE_RETURN_IF_ERROR(SendTo(0, One(&mark)));
      return ReceiveFrom(0, One(&mark));
    }
    for (int from = 1; from < world(); ++from)
      SLUICE_RETURN_IF_ERROR(ReceiveFrom(from, One(&mark)));
    for (int to = 1; to < world(); ++to) SLUICE_RETURN_IF_ERROR(SendTo(to, One(&mark)));
    return absl::OkStatus();
  }

  static absl::Span<int64_t> One(int64_t* value) { return absl::MakeSpan(value, 1); }

  template <typename T>
  absl::Status SendTo(int to, absl::Span<T> values) {
    return Await([&] {
      std::vector<at::Tensor> tensors = {TensorOf(values)};
      return group_->send(tensors, to, /*tag=*/0);
    });
  }
  template <typename T>
  absl::Status ReceiveFrom(int from, absl::Span<T> values) {
    return Await([&] {
      std::vector<at::Tensor> tensors = {TensorOf(values)};
      return group_->recv(tensors, from, /*tag=*/0);
    });
  }

  // Waits for a send or a receive, for as long as it takes.
  template <typename Start>
  absl::Status Await(Start start) {
    bool done = false;
    std::string lost;
    try {
      {
        MutexLock lock(&mu_);
        if (aborted_) return Aborted();
        waits_for_ = start();
      }
      done = waits_for_->wait(kForever);
    } catch (const std::exception& e) {
      lost = FirstLine(e);
    }
    MutexLock lock(&mu_);
    waits_for_.reset();
    if (!lost.empty()) return Lost(lost);
    return done ? absl::OkStatus() : Aborted();
  }

  absl::Status Aborted() const {
    return absl::CancelledError(absl::StrCat("rank ", rank(), " leaves the group"));
  }

  const Options options_;
  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;

  Mutex mu_;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  Work waits_for_;  // Written with mu_ held, by the thread that uses the group.
};

absl::StatusOr<std::unique_ptr<Collective>> Collective::Join(const Options& options,
                                                             Rendezvous* rendezvous) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a group of ", options.world));
  }
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
    return std::unique_ptr<Collective>(
        new Collective(std::make_unique<Impl>(options, std::move(group))));
  } catch (const std::exception& e) {
    return NotMetError(options, FirstLine(e));
  }
}

Collective::Collective(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Collective::~Collective() = default;

int Collective::rank() const { return impl_->rank(); }
int Collective::world() const { return impl_->world(); }
absl::Status Collective::Sum(absl::Span<float> values) { return impl_->Sum(values); }
absl::Status Collective::Sum(absl::Span<double> values) { return impl_->Sum(values); }
absl::Status Collective::SumTo(int root, absl::Span<float> values) {
  return impl_->SumTo(root, values);
}
absl::Status Collective::Broadcast(int root, absl::Span<float> values) {
  return impl_->Broadcast(root, values);
}
absl::Status Collective::Transfer(int from, int to, absl::Span<float> values) {
  return impl_->Transfer(from, to, values);
}
absl::StatusOr<std::vector<std::string>> Collective::Gather(absl::string_view mine) {
  return impl_->Gather(mine);
}
absl::Status Collective::Send(std::string message) { return impl_->Send(std::move(message)); }
absl::StatusOr<std::string> Collective::Receive() { return impl_->Receive(); }
void Collective::Abort() { impl_->Abort(); }

}  // namespace sluice
