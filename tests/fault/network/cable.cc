#include "tests/fault/network/cable.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::fault {
namespace {

constexpr int kMaxFrames = 64;  // Read from one end before the other one gets its turn.

absl::StatusOr<Fd> MakeTap(const std::string& name) {
  Fd fd(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, "/dev/net/tun");

  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  SLUICE_CHECK(name.size() < sizeof request.ifr_name);
  std::memcpy(request.ifr_name, name.data(), name.size());
  if (ioctl(fd.get(), TUNSETIFF, &request) != 0)
    return ErrnoStatus(errno, absl::StrCat("cannot make the network device ", name));
  return fd;
}

// Sends what has come from one end over `line`.
void ReadFrames(int fd, Line::Instant now, Line* line) {
  char frame[1 << 16];
  for (int i = 0; i < kMaxFrames; ++i) {
    const ssize_t size = read(fd, frame, sizeof frame);
    if (size <= 0) return;
    line->Send(std::string(frame, static_cast<size_t>(size)), now);
  }
}

// A frame that the other end cannot take now is lost, as on a real network.
void WriteArrived(int fd, Line::Instant now, Line* line) {
  while (const std::optional<std::string> frame = line->Receive(now))
    (void)!write(fd, frame->data(), frame->size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cable>> Cable::Make(const std::string& near,
                                                   const std::string& far) {
  SLUICE_ASSIGN_OR_RETURN(Fd near_end, MakeTap(near));
  SLUICE_ASSIGN_OR_RETURN(Fd far_end, MakeTap(far));
  Fd woken(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!woken.valid()) return ErrnoStatus(errno, "eventfd");
  return std::unique_ptr<Cable>(
      new Cable(std::move(near_end), std::move(far_end), std::move(woken)));
}

Cable::Cable(Fd near, Fd far, Fd woken)
    : near_(std::move(near)),
      far_(std::move(far)),
      woken_(std::move(woken)),
      thread_([this] { Run(); }) {}

Cable::~Cable() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void Cable::SetQuality(const LineQuality& from_far, const LineQuality& from_near) {
  MutexLock lock(&mu_);
  from_far_.SetQuality(from_far);
  from_near_.SetQuality(from_near);
}

void Cable::Wake() {
  const uint64_t one = 1;
  (void)!write(woken_.get(), &one, sizeof one);
}

void Cable::Run() {
  while (true) {
    absl::Duration next;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      const Line::Instant now = Clock::Real()->Monotonic();
      ReadFrames(near_.get(), now, &from_near_);
      ReadFrames(far_.get(), now, &from_far_);
      WriteArrived(far_.get(), now, &from_near_);
      WriteArrived(near_.get(), now, &from_far_);
      next = std::min(from_near_.NextArrival(), from_far_.NextArrival()) - now;
    }

    pollfd entries[] = {{.fd = near_.get(), .events = POLLIN},
                        {.fd = far_.get(), .events = POLLIN},
                        {.fd = woken_.get(), .events = POLLIN}};
    const timespec timeout =
        absl::ToTimespec(std::clamp(next, absl::ZeroDuration(), absl::Hours(1)));
    (void)ppoll(entries, std::size(entries), &timeout, nullptr);
  }
}

}  // namespace sluice::fault
