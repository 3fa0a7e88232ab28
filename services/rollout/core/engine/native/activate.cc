#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/failpoint.h"
#include "common/base/machine_memory.h"
#include "common/base/status.h"
#include "common/models/team.h"
#include "common/weights/staged.h"
#include "common/weights/weight_delta.h"
#include "services/rollout/core/engine/native/native_engine.h"

// How a version is activated and how weights are read again; see the comment of NativeEngine.
namespace sluice {
namespace {

// A delta that changes more than one element in so many is built beside. Changing an element takes
// as long as reading about fifty, and the pause is to be below a decode step, which reads all.
constexpr uint64_t kOneInPlaceOf = 32;

std::vector<std::string> NamesOf(absl::Span<const TensorSpec> specs,
                                 absl::Span<const int64_t> tensors) {
  std::vector<std::string> names;
  for (const int64_t tensor : tensors) names.push_back(specs[tensor].name);
  return names;
}

// The tensors whose fingerprints differ.
std::vector<int64_t> Differing(absl::Span<const Fingerprint> found,
                               absl::Span<const Fingerprint> wanted) {
  std::vector<int64_t> tensors;
  for (size_t i = 0; i < found.size() && i < wanted.size(); ++i) {
    if (!(found[i] == wanted[i])) tensors.push_back(static_cast<int64_t>(i));
  }
  return tensors;
}

}  // namespace

// Either `beside` is to change places with the weights held, or `delta` is to be applied to them.
class NativeEngine::Prepared : public PreparedWeights {
 public:
  absl::Status status;  // Of the preparation.
  bool copied = false;  // `beside` was made of the weights held.
  std::unique_ptr<DecodeWeights> beside;
  std::vector<Fingerprint> found;   // Of the tensors of `beside`, read from it.
  std::vector<Fingerprint> wanted;  // What they should be; empty if it is not known.
  std::shared_ptr<const WeightDelta> delta;
};

// Before the pause. -------------------------------------------------------------------------------

void NativeEngine::PrepareWeights(StagedWeights* staged) {
  if (staged->tensors == nullptr && staged->delta == nullptr) return;  // A relabel.
  auto prepared = std::make_shared<Prepared>();
  staged->prepared = prepared;
  SLUICE_FAILPOINT("rollout.activate.prepare");
  const absl::Span<const TensorSpec> specs = model_->weights().specs();
  if (staged->delta != nullptr) {
    // Several deltas become one, and no two threads may change the same element.
    // With several versions, the one that is held must stay as it is.
    const WeightDelta& delta = *staged->delta;
    uint64_t elements = 0;
    for (const TensorSpec& spec : specs)
      elements += static_cast<uint64_t>(*NumElements(spec.shape));
    const bool many = delta.changed() > elements / kOneInPlaceOf;
    if (keeps_versions() || (many && FitsBeside()))
      prepared->status = BuildBeside(*staged, prepared.get());
    if (prepared->beside == nullptr && !keeps_versions()) {
      prepared->delta =
          MayOverlap(delta) ? std::make_shared<WeightDelta>(Merge(delta, specs)) : staged->delta;
    }
  } else {
    prepared->status = BuildBeside(*staged, prepared.get());
  }
  // What was prepared takes their place.
  staged->tensors.reset();
  staged->delta.reset();
}

// Whether the machine has memory for a second set of weights.
bool NativeEngine::FitsBeside() const {
  return static_cast<uint64_t>(model_->memory_bytes() + model_->weights().bytes()) <
         MachineMemory();
}

// Builds the staged weights on this thread alone, while steps go on, and reads them again.
absl::Status NativeEngine::BuildBeside(const StagedWeights& staged, Prepared* prepared) const {
  Team alone(1, "sluice-prepare");
  if (staged.tensors != nullptr) {
    if (LayoutId(staged.tensors->specs()) != layout_id_) {
      return absl::InvalidArgumentError(
          absl::StrCat("version ", staged.version.str(), " has another layout than this model"));
    }
    SLUICE_ASSIGN_OR_RETURN(prepared->beside, model_->Pack(*staged.tensors));
  } else {
    SLUICE_ASSIGN_OR_RETURN(prepared->beside, model_->weights().Copy());
    prepared->copied = true;
    prepared->beside->Apply(*staged.delta, +1, &alone);
    prepared->wanted = staged.delta->tensor_states;
  }

  if (!HitFailpoint("rollout.activate.bitflip").ok()) prepared->beside->FlipBit();
  prepared->found = prepared->beside->Fingerprints(&alone);
  if (staged.tensors != nullptr && !(Sum(prepared->found) == staged.state))
    prepared->wanted = TensorFingerprints(*staged.tensors);
  return absl::OkStatus();
}

// In the pause. -----------------------------------------------------------------------------------

Activation NativeEngine::Refuse(const StagedWeights& staged, absl::string_view why) const {
  return {.version = version_, .cause = absl::StrCat("version ", staged.version.str(), ": ", why)};
}

absl::StatusOr<Activation> NativeEngine::ActivateWeights(const StagedWeights& staged, KvPolicy kv) {
  const auto start = std::chrono::steady_clock::now();
  SLUICE_FAILPOINT("rollout.activate.before");

  // Without tensors and delta only the version's number changes; keys and values stay valid.
  const bool relabel =
      staged.prepared == nullptr && staged.tensors == nullptr && staged.delta == nullptr;
  Activation activation;
  if (relabel) {
    if (damaged_ || !(staged.state == held_.state)) {
      return Refuse(staged, absl::StrCat("it has the fingerprint ", staged.state.hex(),
                                         " and came without weights, but the weights held have ",
                                         damaged_ ? "none that is known" : held_.state.hex(),
                                         "; publish it with its tensors"));
    }
    activation.accepted = true;
  } else if (!HasRoom()) {
    return Refuse(staged, absl::StrCat("weights of ", options_.max_versions,
                                       " versions are held, which answers end with"));
  } else {
    StagedWeights own;
    if (staged.prepared == nullptr) {
      own = staged;
      PrepareWeights(&own);
    }
    auto* const prepared =
        static_cast<Prepared*>((staged.prepared != nullptr ? staged : own).prepared.get());
    if (absl::IsInvalidArgument(prepared->status)) return prepared->status;
    if (prepared->beside != nullptr) {
      activation = SwitchToBeside(staged, prepared);
    } else if (prepared->delta != nullptr) {
      activation = ApplyInPlace(staged, *prepared->delta);
    } else {
      activation = Refuse(staged, prepared->status.message());  // There was not enough memory.
    }
  }

  if (activation.accepted) {
    // Keys and values that damaged weights gave must not be read.
    if (!relabel) scheduler_.SwitchWeights(Salt(), kv == KvPolicy::kRecompute || damaged_);
    damaged_ = false;
    const PolicyVersion before = std::exchange(version_, staged.version);
    held_.version = version_;
    if (!relabel) {
      const auto verify = std::chrono::steady_clock::now();
      if (!held_.rotation.complete()) activation.damage = VerifyAfterActivation();
      if (!activation.damage.has_value()) activation.damage = VerifyOlder();
      activation.verify_seconds = SecondsSince(verify);
    }
    if (activation.damage.has_value()) {
      activation.accepted = false;
      activation.cause = activation.damage->cause;
      activation.blame = activation.damage->tensors;
      version_ = before;
    }
  }
  if (damaged_) DropOlder();
  activation.version = version_;
  SLUICE_FAILPOINT("rollout.activate.after");
  activation.seconds = SecondsSince(start);
  return activation;
}

Activation NativeEngine::SwitchToBeside(const StagedWeights& staged, Prepared* prepared) {
  if (const Fingerprint sum = Sum(prepared->found); !(sum == staged.state)) {
    const std::vector<int64_t> differ = Differing(prepared->found, prepared->wanted);
    Activation refused = Refuse(staged, "");
    refused.blame = NamesOf(model_->weights().specs(), differ);
    absl::StrAppend(&refused.cause, "the packed weights have the fingerprint ", sum.hex(),
                    ", the published one is ", staged.state.hex(), "; ",
                    differ.empty()
                        ? "the staged bytes differ from the manifest"
                        : absl::StrCat("first tensor that differs: ", refused.blame.front()));
    if (prepared->copied && !damaged_) AddDamageOfHeld(&refused);
    return refused;
  }

  model_->SwapWeights(&prepared->beside);
  KeepWeightsBefore(prepared);
  held_.tensors = std::move(prepared->found);
  held_.state = staged.state;
  held_.rotation.PassAll(stats_.tokens_generated);
  return {.accepted = true};
}

// *prepared has the weights from before the switch now. They stay if requests end with them.
void NativeEngine::KeepWeightsBefore(Prepared* prepared) {
  const uint64_t epoch = scheduler_.epoch();
  if (scheduler_.keepers(epoch) > 0) older_.push_back({held_, epoch, std::move(prepared->beside)});
}

Activation NativeEngine::ApplyInPlace(const StagedWeights& staged, const WeightDelta& delta) {
  if (damaged_ || !(delta.base == held_.state)) {
    return Refuse(staged, absl::StrCat("its delta starts from the fingerprint ", delta.base.hex(),
                                       ", but the weights held have ",
                                       damaged_ ? "none that is known" : held_.state.hex()));
  }

  const std::vector<Fingerprint> forward = model_->ApplyDelta(delta, +1);
  SLUICE_FAILPOINT("rollout.activate.applied");
  Fingerprint sum = held_.state;
  sum += Sum(forward);
  if (sum == staged.state) {
    for (size_t i = 0; i < held_.tensors.size(); ++i) held_.tensors[i] += forward[i];
    held_.state = sum;
    held_.rotation.Restart();
    if (!HitFailpoint("rollout.activate.bitflip").ok()) model_->FlipBit();
    return {.accepted = true};
  }

  // Undo it, and read everything: the weights are to be those from before in every bit.
  std::vector<Fingerprint> found = held_.tensors;
  for (size_t i = 0; i < found.size(); ++i) found[i] += forward[i];
  const std::vector<int64_t> differ = Differing(found, delta.tensor_states);
  model_->ApplyDelta(delta, -1);
  SLUICE_FAILPOINT("rollout.activate.undone");

  Activation refused = Refuse(
      staged, absl::StrCat("its delta leads to the fingerprint ", sum.hex(),
                           ", the published one is ", staged.state.hex(), "; it was undone"));
  refused.blame = NamesOf(model_->weights().specs(), differ);
  AddDamageOfHeld(&refused);
  return refused;
}

// Reading weights again. --------------------------------------------------------------------------

double NativeEngine::MedianStepSeconds() const {
  std::vector<double> last(step_seconds_.begin(),
                           step_seconds_.begin() + std::min(steps_timed_, step_seconds_.size()));
  if (last.empty()) return 0;
  std::nth_element(last.begin(), last.begin() + last.size() / 2, last.end());
  return last[last.size() / 2];
}

std::vector<Fingerprint> NativeEngine::ReadAll() {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Fingerprint> found = model_->Fingerprints();
  full_pass_seconds_ = SecondsSince(start);
  return found;
}

std::optional<WeightDamage> NativeEngine::VerifyAfterActivation() {
  // Before the first step nobody waits for a token.
  const bool all = !options_.verify_in_turns &&
                   (steps_timed_ == 0 || 4 * full_pass_seconds_ < MedianStepSeconds());
  return all ? VerifyAll() : VerifyPart();
}

std::optional<WeightDamage> NativeEngine::VerifyAll() {
  std::vector<int64_t> all(held_.tensors.size());
  std::iota(all.begin(), all.end(), 0);
  std::optional<WeightDamage> damage = Compare(held_, all, ReadAll());
  if (!damage.has_value()) held_.rotation.PassAll(stats_.tokens_generated);
  return damage;
}

std::optional<WeightDamage> NativeEngine::VerifyPart() {
  const std::vector<int64_t>& tensors = held_.rotation.next();
  std::optional<WeightDamage> damage = Compare(held_, tensors, model_->Fingerprints(tensors));
  if (damage.has_value()) DropOlder();
  else held_.rotation.Pass(stats_.tokens_generated);
  return damage;
}

// Reads a part of each older version again.
std::optional<WeightDamage> NativeEngine::VerifyOlder() {
  for (OlderWeights& older : older_) {
    const std::vector<int64_t>& tensors = older.rotation.next();
    std::optional<WeightDamage> damage =
        Compare(older, tensors, model_->FingerprintsOf(*older.weights, tensors));
    if (damage.has_value()) return damage;
    older.rotation.Pass(stats_.tokens_generated);
  }
  return std::nullopt;
}

// Reads all weights, to see whether it was because of them that a delta was refused.
void NativeEngine::AddDamageOfHeld(Activation* refused) {
  refused->damage = VerifyAll();
  if (refused->damage.has_value()) absl::StrAppend(&refused->cause, "; ", refused->damage->cause);
}

// Compares the fingerprints that were found for `tensors` with those that they should have.
std::optional<WeightDamage> NativeEngine::Compare(const HeldWeights& held,
                                                  absl::Span<const int64_t> tensors,
                                                  absl::Span<const Fingerprint> found) {
  std::vector<int64_t> wrong;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!(found[i] == held.tensors[tensors[i]])) wrong.push_back(tensors[i]);
  }
  if (wrong.empty()) return std::nullopt;

  if (!std::exchange(damaged_, true)) ++damages_;
  WeightDamage damage{.tensors = NamesOf(model_->weights().specs(), wrong)};
  for (const int64_t tensor : wrong) {
    damage.suspect_tokens =
        std::max(damage.suspect_tokens, stats_.tokens_generated - held.rotation.right_at(tensor));
  }
  damage.cause = absl::StrCat("the weights in memory are not those of version ", held.version.str(),
                              ", in ", absl::StrJoin(damage.tensors, ", "), ": ",
                              damage.suspect_tokens, " tokens were sampled since they were last ",
                              "found right; test the memory of this machine");
  return damage;
}

}  // namespace sluice
