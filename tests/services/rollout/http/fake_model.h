#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/prompt/prompt.h"
#include "services/rollout/http/model.h"

namespace sluice::rollout::http {

// A model for the HTTP server: the tokenizer of the digits example or of another directory, with or
// without a chat template. In place of an engine it records the requests; the test sends tokens.
class FakeModel : public Model {
 public:
  static constexpr char kDigits[] = SLUICE_SOURCE_DIR "/configs/examples/digits";

  explicit FakeModel(std::string name = "digits", const std::string& chat_template = "none",
                     const std::string& model_dir = kDigits)
      : name_(std::move(name)) {
    const auto dir = ReadModelDir(model_dir);
    SLUICE_CHECK_MSG(dir.ok(), dir.status().ToString());
    auto renderer = PromptRenderer::Load(*dir, chat_template, {});
    SLUICE_CHECK_MSG(renderer.ok(), renderer.status().ToString());
    renderer_ = *std::move(renderer);
  }

  const std::string& name() const override { return name_; }
  const PromptRenderer& renderer() const override { return *renderer_; }
  uint32_t max_context() const override { return 64; }
  absl::Time loaded() const override { return absl::FromUnixSeconds(1'700'000'000); }
  std::optional<PolicyVersion> serving() const override {
    MutexLock lock(&mu_);
    return serving_;
  }

  std::string digest(PolicyVersion version) const override {
    return absl::StrCat("digest", version.number);
  }

  void Add(std::vector<Request> requests) override {
    MutexLock lock(&mu_);
    for (Request& request : requests) requests_.push_back(std::move(request));
    changed_.NotifyAll();
  }

  void Abort(const std::vector<uint64_t>& requests) override {
    MutexLock lock(&mu_);
    aborted_.insert(aborted_.end(), requests.begin(), requests.end());
    changed_.NotifyAll();
  }

  void SetServing(std::optional<PolicyVersion> version) {
    MutexLock lock(&mu_);
    serving_ = version;
  }

  void Clear() {
    MutexLock lock(&mu_);
    requests_.clear();
    aborted_.clear();
  }

  // Waits until `count` requests have come since the last Clear(), and returns them all.
  std::vector<Request> AwaitRequests(size_t count) {
    MutexLock lock(&mu_);
    while (requests_.size() < count) changed_.Wait(&mu_);
    return requests_;
  }

  std::vector<uint64_t> AwaitAborted(size_t count) {
    MutexLock lock(&mu_);
    while (aborted_.size() < count) changed_.Wait(&mu_);
    return aborted_;
  }

 private:
  const std::string name_;
  std::unique_ptr<PromptRenderer> renderer_;
  mutable Mutex mu_;
  CondVar changed_;
  std::optional<PolicyVersion> serving_ ABSL_GUARDED_BY(mu_) = PolicyVersion{1, 3};
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> aborted_ ABSL_GUARDED_BY(mu_);
};

// One sampled token and the text it released.
inline TokenEvent Sampled(uint64_t request, int32_t token, const std::string& text,
                          FinishReason finish = FinishReason::kNone,
                          PolicyVersion version = {1, 3}) {
  auto details = std::make_shared<TokenDetails>();
  details->text = text;
  return {.request = request,
          .token = token,
          .logprob = -0.5f,
          .version = version,
          .finish = finish,
          .details = details};
}

inline StepEvents Step(std::vector<TokenEvent> tokens) {
  StepEvents step;
  step.tokens = std::move(tokens);
  return step;
}

}  // namespace sluice::rollout::http
