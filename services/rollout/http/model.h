#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rl/version.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {
class PromptRenderer;
}  // namespace sluice

namespace sluice::rollout::http {

// Ids of guests' requests have this bit, those of the job's work do not.
inline constexpr uint64_t kApiRequest = uint64_t{1} << 63;

// One model that answers: the engine of a job, or a fake. What it samples goes to
// Guests::Stepped().
//
// Thread-safe; no call blocks.
class Model {
 public:
  virtual ~Model() = default;

  virtual const std::string& name() const = 0;  // As requests give it.
  virtual const PromptRenderer& renderer() const = 0;
  virtual uint32_t max_context() const = 0;  // Tokens, prompt and answer.
  virtual absl::Time loaded() const = 0;
  // Nothing: no weights to serve with yet.
  virtual std::optional<PolicyVersion> serving() const = 0;
  // Of its weights, hex; empty: not known any more.
  virtual std::string digest(PolicyVersion version) const = 0;

  virtual void Add(std::vector<Request> requests) = 0;
  virtual void Abort(const std::vector<uint64_t>& requests) = 0;  // Before the next step.
};

}  // namespace sluice::rollout::http
