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
    int threads = 1;     // Threads that it may always use.
    bool fixed = false;  // It never uses more, because a person asked for exactly this number.
  };
  int cores = 1;
  std::vector<Member> members;
};

// The present state of a member of the plan.
struct CoreUser {
  int threads = 1;
  bool fixed = false;
  bool busy = false;
};

// The number of threads that the member users[self], which is busy, may use now: its own, and an
// equal share of the cores that no busy member owns. A fixed member gets no such share, but while
// it waits its cores are lent too.
int ThreadsNow(int cores, absl::Span<const CoreUser> users, size_t self);

// Writes the plan to `path`, for CoreShare::Open(). It replaces an older file there. Processes that
// opened the older file keep it, and share no cores with those that open the new one.
absl::Status WriteCorePlan(const std::string& path, const CorePlan& plan);

struct CorePlanFile;  // The contents of the plan's file.

// One daemon's share of the cores. While it waits it lends its cores, and while others wait it
// borrows theirs. All daemons read and write one small mapped file, so a question costs some loads
// from memory and no system call.
//
// No daemon waits for a core. A daemon that becomes busy uses its own cores at once. A daemon that
// has borrowed them gives them back the next time it asks; until then both compute on them. A
// daemon that dies while it is busy lends nothing until it is started again.
//
// Thread-safe.
class CoreShare {
 public:
  // A share of always `threads` threads (at least 1), which neither lends nor borrows.
  explicit CoreShare(int threads);
  // The share of the daemon `name` in the plan at `path`.
  // NOT_FOUND: there is no such file, or no such daemon in it.
  // DATA_LOSS: the file is not a plan.
  static absl::StatusOr<std::unique_ptr<CoreShare>> Open(const std::string& path,
                                                         const std::string& name);
  ~CoreShare();
  CoreShare(const CoreShare&) = delete;
  CoreShare& operator=(const CoreShare&) = delete;

  // The number of threads that one computation may use now, at least 1. Ask before each piece of
  // work of some milliseconds. If several parts of this daemon compute at once, each gets an equal
  // part.
  int threads() const;

  // A part of this daemon computes while its Busy object exists.
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
  CoreShare(CorePlanFile* file, size_t members, size_t self);
  void Enter();
  void Leave();

  const int threads_alone_;   // Threads without a plan. 0 if there is a plan.
  CorePlanFile* const file_;  // Mapped. Null without a plan.
  // The number of members of the plan, as the file had it when it was checked, and this member's
  // index; self_ < members_ with a plan.
  const size_t members_;
  const size_t self_;

  // Number of parts of this daemon that compute now; never negative. With a plan, the file holds
  // the same number, so that the other daemons can read it.
  std::atomic<int> busy_parts_{0};
};

}  // namespace sluice
