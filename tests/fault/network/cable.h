#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "tests/fault/network/line.h"

namespace sluice::fault {

// A network cable that a test can make bad. Its ends are two network devices (TAP) of the names
// given, and this process carries each frame from one to the other. So it needs no support of the
// kernel for delays (netem), which many kernels lack.
//
// Thread-safe. Owns a thread.
class Cable {
 public:
  // Makes the devices in the network namespace of the calling thread. They may be moved elsewhere,
  // and vanish with the cable.
  // PERMISSION_DENIED, NOT_FOUND, ..: this machine allows no such devices.
  static absl::StatusOr<std::unique_ptr<Cable>> Make(const std::string& near,
                                                     const std::string& far);
  ~Cable();
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  // Sets how frames are carried from the far end to the near one, and back.
  void SetQuality(const LineQuality& from_far, const LineQuality& from_near)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Cable(Fd near, Fd far, Fd woken);
  void Run();
  void Wake();

  const Fd near_, far_;
  const Fd woken_;  // An eventfd that interrupts the thread's wait.

  Mutex mu_;
  Line from_far_ ABSL_GUARDED_BY(mu_);
  Line from_near_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::fault
