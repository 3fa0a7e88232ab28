#pragma once

#include <memory>
#include <string>
#include <vector>

#include "services/rollout/http/model.h"

namespace sluice::rollout {
class Session;

// Presents a session as a model of the HTTP API and of EngineService. Without an adapter the
// model's name is the job's, and the session's newest verified weights answer. With an adapter the
// name is JOB:ADAPTER, the adapter changes these weights, and the digest covers both.
//
// Thread-safe.
class ApiModel : public http::Model {
 public:
  explicit ApiModel(std::shared_ptr<Session> session);
  ApiModel(std::shared_ptr<Session> session, const std::string& adapter_name,
           std::shared_ptr<const Adapter> adapter);
  ~ApiModel() override;

  const std::string& name() const override { return name_; }
  const PromptRenderer& renderer() const override;
  uint32_t max_context() const override;
  absl::Time loaded() const override { return loaded_; }
  std::optional<PolicyVersion> serving() const override;
  std::string digest(PolicyVersion version) const override;
  void Add(std::vector<Request> requests) override;
  void Abort(const std::vector<uint64_t>& requests) override;

 private:
  const std::shared_ptr<Session> session_;
  const std::string name_;
  const std::shared_ptr<const Adapter> adapter_;  // Null: no adapter.
  const absl::Time loaded_;
};

}  // namespace sluice::rollout
