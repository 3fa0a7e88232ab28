#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/sandbox/code.h"
#include "common/sandbox/driver.h"
#include "common/sandbox/sandbox.h"

namespace sluice::sandbox {

// Programs that were compiled, by their source. Thread-safe.
class CompiledPrograms {
 public:
  struct Program {
    std::string binary;  // Empty: the compiler refused it.
    std::string compiler_says;
  };
  explicit CompiledPrograms(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  std::shared_ptr<const Program> Find(const std::string& source);
  // Drops those that were not used for longest, so that all fit in most_bytes.
  void Add(const std::string& source, std::shared_ptr<const Program> program);

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<const Program> program;
  };
  const uint64_t most_bytes_;
  Mutex mu_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);  // The last used is first.
  std::map<std::string, std::list<Kept>::iterator> by_key_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// The sandboxes of a daemon, which all its jobs share: so many programs run at a time as there are
// cores, and fewer if their limits of memory are more than half of the machine's. Thread-safe.
class CodeSandboxes {
 public:
  struct Options {
    uint32_t runs = 0;  // Most programs that run at a time. 0: the usable cores.
    bool allow_unsafe = false;
    Tier strongest = Tier::kNamespaces;
  };
  // FAILED_PRECONDITION NO_SANDBOX as Launcher::Make().
  static absl::StatusOr<std::unique_ptr<CodeSandboxes>> Make(const Options& options);

  Launcher* launcher() const { return launcher_.get(); }
  uint32_t runs() const { return runs_; }
  // The tier, and the versions of the interpreter and the compiler.
  const std::string& identity() const { return identity_; }
  CompiledPrograms* compiled() { return &compiled_; }

  // The right to run one program of so much memory.
  class Turn {
   public:
    Turn(CodeSandboxes* owner, uint64_t memory) : owner_(owner), memory_(memory) {}
    ~Turn();
    Turn(const Turn&) = delete;

   private:
    CodeSandboxes* const owner_;
    const uint64_t memory_;
  };
  // RESOURCE_EXHAUSTED: no turn came within `timeout`.
  absl::StatusOr<std::unique_ptr<Turn>> AwaitTurn(uint64_t memory, absl::Duration timeout);

 private:
  CodeSandboxes(std::unique_ptr<Launcher> launcher, uint32_t runs);
  std::string ReadVersions();

  const std::unique_ptr<Launcher> launcher_;
  const uint32_t runs_;
  const uint64_t memory_;  // For all programs together.
  std::string identity_;   // Constant after Make().
  CompiledPrograms compiled_{256ull << 20};

  Mutex mu_;
  CondVar changed_;
  uint32_t running_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t reserved_ ABSL_GUARDED_BY(mu_) = 0;  // Bytes of memory, of those that run.
};

// Runs the programs of one job. Each gets a sandbox of its own, which is used once. A thread sets
// some up ahead of time and ends those that were used, so that programs wait for neither.
//
// Thread-safe.
class CodeRunner {
 public:
  struct Options {
    double cores = 1;
    uint64_t memory_bytes = 512ull << 20;
    uint32_t pids = 64;
    absl::Duration wall = absl::Seconds(10);  // Of each test.
    uint64_t output_bytes = 1 << 20;          // Of each test. What prints more is killed.
    uint32_t ready = 1;                       // Sandboxes that are set up ahead of time.
    absl::Duration turn = kLongestTurn;
  };
  // `sandboxes` outlives the runner.
  CodeRunner(CodeSandboxes* sandboxes, const Options& options);
  ~CodeRunner();  // Calls Stop().

  // As RunCode says. Once a program has used up its time in two tests, it is not run any more, and
  // its other tests are reported the same.
  absl::StatusOr<CodeOutcome> Run(const CodeTask& task,
                                  const std::function<bool(size_t test, const TestReport&)>& take);

  // Ends all programs; their Run() and later ones return CANCELLED. Idempotent.
  void Stop();

 private:
  class Borrowed;  // A driver in use, which Stop() can kill.
  class Solution;  // One call of Run().
  void FillPool();
  absl::StatusOr<std::unique_ptr<Driver>> TakeReady();
  absl::StatusOr<std::unique_ptr<Driver>> StartDriver(const Limits& limits);
  absl::StatusOr<std::shared_ptr<const CompiledPrograms::Program>> Compile(
      const std::string& source, absl::Duration time);
  Limits RunLimits() const;

  CodeSandboxes* const sandboxes_;
  const Options options_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::unique_ptr<Driver>> ready_ ABSL_GUARDED_BY(mu_);
  std::set<Driver*> in_use_ ABSL_GUARDED_BY(mu_);
  // Those whose program has run. The thread ends them, so that no verdict waits for that.
  std::vector<std::unique_ptr<Driver>> used_ ABSL_GUARDED_BY(mu_);
  std::thread filler_;
};

}  // namespace sluice::sandbox
