#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice {

// How the daemons of one machine divide its cores.
struct CorePlan {
  struct Member {
    std::string name;    // The daemon's id, at most 63 bytes.
    int threads = 1;     // That it may always use.
    bool fixed = false;  // It never uses more, because somebody asked for exactly so many.
  };
  int cores = 1;
  std::vector<Member> members;
};

// A member of the plan as it stands now.
struct CoreUser {
  int threads = 1;
  bool fixed = false;
  bool busy = false;
};

// The threads that the busy member `self` may use now: its own, and an equal part of the cores that
// no busy member owns. Members that are fixed take no part, and their own cores are lent like
// others.
int ThreadsNow(int cores, absl::Span<const CoreUser> users, size_t self);

// Writes the plan to `path` for CoreShare::Open(). Readers of an older file there are cut off from
// it.
absl::Status WriteCorePlan(const std::string& path, const CorePlan& plan);

struct CorePlanFile;  // What lies in the plan's file.

// One daemon's share of the cores. While it waits it lends them, and while others wait it borrows:
// all read and write a small file in memory, so that asking costs some loads and no system call.
//
// Nobody waits for a core. A daemon that becomes busy takes its own at once, and who has borrowed
// them gives them back the next time it asks; until then both compute on them. A daemon that dies
// while it is busy lends nothing until it is started again.
//
// Thread-safe.
class CoreShare {
 public:
  // Always `threads`; neither lends nor borrows.
  explicit CoreShare(int threads);
  // The share of the daemon `name` in the plan at `path`.
  // NOT_FOUND: no such file, or no such daemon in it. DATA_LOSS: it is no plan.
  static absl::StatusOr<std::unique_ptr<CoreShare>> Open(const std::string& path,
                                                         const std::string& name);
  ~CoreShare();
  CoreShare(const CoreShare&) = delete;
  CoreShare& operator=(const CoreShare&) = delete;

  // Threads that one computation may use now, at least 1. Ask before each piece of work of some
  // milliseconds. Where several parts of this daemon compute at once, each gets its part.
  int threads() const;

  // While one lives, its owner computes.
  class Busy {
   public:
    explicit Busy(CoreShare* share) : share_(share) { share_->Enter(); }
    ~Busy() { share_->Leave(); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    CoreShare* const share_;
  };

 private:
  CoreShare(CorePlanFile* file, size_t self);
  void Enter();
  void Leave();

  const int alone_;           // Threads without a plan; 0: there is one.
  CorePlanFile* const file_;  // Mapped; null without a plan.
  const size_t self_;         // Place in the plan.

  // Parts of this daemon that compute now. The file has the same number, for others to read.
  std::atomic<int> inside_{0};
};

}  // namespace sluice
