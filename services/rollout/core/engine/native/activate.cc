#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/weights/staged.h"
#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {

// Finds out why the packed weights do not have the published fingerprint. If a packed tensor
// differs from the staged one, packing or memory is at fault, and the tensor is named. If none
// does, the staged bytes are not what the manifest says.
Activation NativeEngine::MakeRefusal(const StagedWeights& staged,
                                     const std::vector<Fingerprint>& found, Fingerprint sum) const {
  Activation refused{.version = version_};
  const std::vector<Fingerprint> wanted = TensorFingerprints(*staged.tensors);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!(found[i] == wanted[i])) refused.blame.push_back(weights_->spec(i).name);
  }
  refused.cause = absl::StrCat(
      "version ", staged.version.str(), ": the packed weights have the fingerprint ", sum.hex(),
      ", the published one is ", staged.state.hex(), "; ",
      refused.blame.empty() ? "the staged bytes differ from the manifest"
                            : absl::StrCat("first tensor that differs: ", refused.blame.front()));
  return refused;
}

absl::StatusOr<Activation> NativeEngine::ActivateWeights(const StagedWeights& staged, KvPolicy kv) {
  const auto start = std::chrono::steady_clock::now();
  SLUICE_FAILPOINT("rollout.activate.before");

  // Without tensors only the version's number changes, and the keys and values stay valid. With
  // tensors the proof comes after the packing: the fingerprint is read back from the packed
  // numbers, because these are what tokens are sampled from.
  if (staged.tensors == nullptr) {
    if (!(staged.state == held_)) {
      return Activation{.version = version_,
                        .cause = absl::StrCat(
                            "version ", staged.version.str(), " has the fingerprint ",
                            staged.state.hex(), " and came without tensors, but the weights held ",
                            "have ", held_.hex(), "; publish it with its tensors")};
    }
  } else {
    if (staged.tensors->layout_id() != weights_->layout_id()) {
      return absl::InvalidArgumentError(
          absl::StrCat("version ", staged.version.str(), " has another layout than this model"));
    }

    model_->SetWeights(staged.tensors.get());
    const std::vector<Fingerprint> found = model_->Fingerprints();
    if (const Fingerprint sum = Sum(found); !(sum == staged.state)) {
      Activation refused = MakeRefusal(staged, found, sum);
      model_->SetWeights(weights_.get());
      if (!(Sum(model_->Fingerprints()) == held_)) {
        return absl::InternalError(absl::StrCat(
            refused.cause, "; and the weights held before could not be put back: test the memory"));
      }
      return refused;
    }

    weights_ = staged.tensors;
    held_ = staged.state;
    scheduler_.SwitchWeights(Salt(), kv == KvPolicy::kRecompute);
  }

  version_ = staged.version;
  SLUICE_FAILPOINT("rollout.activate.after");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return Activation{.accepted = true, .version = version_, .seconds = seconds.count()};
}

}  // namespace sluice
