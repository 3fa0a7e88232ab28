#include "tests/integration/harness/relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace sluice::integration {
namespace {

Fd MakeTcpSocket() { return Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

// Passes on what has come. False: the connection has ended.
bool PassOn(int from, int to) {
  char bytes[16 << 10];
  const ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t n = send(to, bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += n;
  }
  return got > 0;
}

}  // namespace

Relay::Relay(int to) : to_(to), listener_(MakeTcpSocket()), wake_(eventfd(0, EFD_CLOEXEC)) {
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  SLUICE_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  SLUICE_CHECK(listen(listener_.get(), SOMAXCONN) == 0);
  SLUICE_CHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

Relay::~Relay() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Relay::Cut() {
  MutexLock lock(&mu_);
  cut_ = true;
  eventfd_write(wake_.get(), 1);
}

void Relay::Heal() {
  MutexLock lock(&mu_);
  cut_ = false;
}

void Relay::Accept(bool is_cut) {
  Pair pair{.near = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)),
            .far = MakeTcpSocket()};
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(static_cast<uint16_t>(to_)),
                      .sin_addr = {htonl(INADDR_LOOPBACK)}};
  if (!is_cut &&
      connect(pair.far.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    pairs_.push_back(std::move(pair));
  }
}

void Relay::Run() {
  while (true) {
    std::vector<pollfd> waits = {{.fd = wake_.get(), .events = POLLIN},
                                 {.fd = listener_.get(), .events = POLLIN}};
    for (const Pair& pair : pairs_) {
      waits.push_back({.fd = pair.near.get(), .events = POLLIN});
      waits.push_back({.fd = pair.far.get(), .events = POLLIN});
    }
    if (poll(waits.data(), waits.size(), -1) < 0) continue;

    bool is_cut = false;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      is_cut = cut_;
    }
    eventfd_t woken = 0;
    if (waits[0].revents != 0) eventfd_read(wake_.get(), &woken);
    std::vector<Pair> left;
    for (size_t i = 0; i < pairs_.size() && !is_cut; ++i) {
      const int near = pairs_[i].near.get(), far = pairs_[i].far.get();
      const bool goes_on = (waits[2 + 2 * i].revents == 0 || PassOn(near, far)) &&
                           (waits[3 + 2 * i].revents == 0 || PassOn(far, near));
      if (goes_on) left.push_back(std::move(pairs_[i]));
    }
    pairs_ = std::move(left);
    if (waits[1].revents != 0) Accept(is_cut);
  }
}

}  // namespace sluice::integration
