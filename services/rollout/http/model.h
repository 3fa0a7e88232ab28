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

// A model that can answer: the engine of a job, or a fake. What it samples goes to
// Guests::DeliverEvents().
class Model {
 public:
  virtual ~Model() = default;

  virtual const std::string& name() const = 0;  // As requests name it.
  virtual const PromptRenderer& renderer() const = 0;
  virtual uint32_t max_context() const = 0;  // Most tokens of prompt and answer together.
  virtual absl::Time loaded() const = 0;
  // The version that serves. Nullopt if there are no weights yet.
  virtual std::optional<PolicyVersion> serving() const = 0;
  // Digest of a version's weights, in hex. Empty if it is not known any more.
  virtual std::string digest(PolicyVersion version) const = 0;

  virtual void Add(std::vector<Request> requests) = 0;
  // Takes effect before the next step.
  virtual void Abort(const std::vector<uint64_t>& requests) = 0;
};

}  // namespace sluice::rollout::http
