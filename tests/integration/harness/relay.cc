#include "tests/integration/harness/relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::integration {
namespace {

Fd MakeTcpSocket() { return Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

}  // namespace

// Reads what has come, to be passed on at `due`.
void Relay::Receive(int from, absl::Duration due, Flow* flow) {
  char bytes[16 << 10];
  const ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) flow->ended = true;
  // Nothing overtakes what was sent before it.
  if (!flow->under_way.empty()) due = std::max(due, flow->under_way.back().due);
  flow->under_way.push_back(
      {due, std::string(bytes, static_cast<size_t>(std::max<ssize_t>(got, 0)))});
}

// Passes on what is due. False: the connection has ended.
bool Relay::PassOn(int to, absl::Duration now, Flow* flow) {
  for (; !flow->under_way.empty() && flow->under_way.front().due <= now;
       flow->under_way.pop_front()) {
    const std::string& bytes = flow->under_way.front().bytes;
    if (bytes.empty()) return false;
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(to, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
  }
  return true;
}

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

void Relay::Delay(absl::Duration there, absl::Duration back) {
  MutexLock lock(&mu_);
  there_ = there;
  back_ = back;
}

void Relay::Accept(bool is_cut) {
  Pair pair{.near = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)),
            .far = MakeTcpSocket(),
            .there = {},
            .back = {}};
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(static_cast<uint16_t>(to_)),
                      .sin_addr = {htonl(INADDR_LOOPBACK)}};
  if (!is_cut &&
      connect(pair.far.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    pairs_.push_back(std::move(pair));
  }
}

// How long poll() may wait: until the next chunk is due. -1: for ever.
int Relay::PollMilliseconds() const {
  absl::Duration due = absl::InfiniteDuration();
  for (const Pair& pair : pairs_) {
    for (const Flow* flow : {&pair.there, &pair.back}) {
      if (!flow->under_way.empty()) due = std::min(due, flow->under_way.front().due);
    }
  }
  if (due == absl::InfiniteDuration()) return -1;
  const absl::Duration left = std::max(due - Clock::Real()->Monotonic(), absl::ZeroDuration());
  return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

void Relay::Run() {
  while (true) {
    std::vector<pollfd> waits = {{.fd = wake_.get(), .events = POLLIN},
                                 {.fd = listener_.get(), .events = POLLIN}};
    for (const Pair& pair : pairs_) {
      // poll() leaves out what is negative.
      waits.push_back({.fd = pair.there.ended ? -1 : pair.near.get(), .events = POLLIN});
      waits.push_back({.fd = pair.back.ended ? -1 : pair.far.get(), .events = POLLIN});
    }
    if (poll(waits.data(), waits.size(), PollMilliseconds()) < 0) continue;

    bool is_cut = false;
    absl::Duration there, back;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      is_cut = cut_;
      there = there_;
      back = back_;
    }
    eventfd_t woken = 0;
    if (waits[0].revents != 0) eventfd_read(wake_.get(), &woken);
    const absl::Duration now = Clock::Real()->Monotonic();
    std::vector<Pair> left;
    for (size_t i = 0; i < pairs_.size() && !is_cut; ++i) {
      Pair& pair = pairs_[i];
      if (waits[2 + 2 * i].revents != 0) Receive(pair.near.get(), now + there, &pair.there);
      if (waits[3 + 2 * i].revents != 0) Receive(pair.far.get(), now + back, &pair.back);
      const bool goes_on =
          PassOn(pair.far.get(), now, &pair.there) && PassOn(pair.near.get(), now, &pair.back);
      if (goes_on) left.push_back(std::move(pair));
    }
    pairs_ = std::move(left);
    if (waits[1].revents != 0) Accept(is_cut);
  }
}

}  // namespace sluice::integration
