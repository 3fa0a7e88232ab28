#include "common/config/algorithm_spec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <optional>
#include <string>

#include "common/algorithms/registry.h"
#include "common/base/status.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {
namespace {

using google::protobuf::FieldDescriptor;

const FieldDescriptor* LossField(const char* name) {
  const FieldDescriptor* const field = job::v1::Loss::descriptor()->FindFieldByName(name);
  SLUICE_CHECK_MSG(field != nullptr, name);
  return field;
}

// The first of the fields in which 0 and "" are no values that a job file can give, unless they are
// the default. A stored job that an older build has checked does not have them.
constexpr int kFirstLaterField = 13;

// Reads fields of a LossSpec from a Loss. A field that the message does not have keeps its default.
struct LossReader {
  const job::v1::Loss& loss;

  void operator()(const char* name, std::string& value) const {
    const std::string& read = loss.GetReflection()->GetString(loss, LossField(name));
    if (!read.empty() || LossField(name)->number() < kFirstLaterField) value = read;
  }
  void operator()(const char* name, double& value) const {
    const double read = loss.GetReflection()->GetDouble(loss, LossField(name));
    if (read != 0 || LossField(name)->number() < kFirstLaterField) value = read;
  }
  void operator()(const char* name, bool& value) const {
    value = loss.GetReflection()->GetBool(loss, LossField(name));
  }
  void operator()(const char* name, std::optional<double>& value) const {
    value.reset();
    if (loss.GetReflection()->HasField(loss, LossField(name)))
      value = loss.GetReflection()->GetDouble(loss, LossField(name));
  }
};

// Writes fields of a LossSpec into a Loss.
struct LossWriter {
  job::v1::Loss& loss;

  void operator()(const char* name, const std::string& value) const {
    loss.GetReflection()->SetString(&loss, LossField(name), value);
  }
  void operator()(const char* name, double value) const {
    loss.GetReflection()->SetDouble(&loss, LossField(name), value);
  }
  void operator()(const char* name, bool value) const {
    loss.GetReflection()->SetBool(&loss, LossField(name), value);
  }
  void operator()(const char* name, const std::optional<double>& value) const {
    loss.GetReflection()->ClearField(&loss, LossField(name));
    if (value.has_value()) (*this)(name, *value);
  }
};

}  // namespace

AlgorithmSpec AlgorithmSpecOf(const job::v1::JobSpec& spec) {
  const job::v1::Advantage& advantage = spec.algorithm().advantage();
  AlgorithmSpec out;
  out.advantage = {.kind = advantage.kind(),
                   .signal_filter = advantage.group_filter() == "signal",
                   .max_rejected_steps = advantage.max_rejected_steps(),
                   .truncated = advantage.truncated(),
                   .kl = advantage.kl(),
                   .gamma = advantage.gamma() == 0 ? 1 : advantage.gamma(),
                   .raw = advantage.raw(),
                   .bootstrap_truncated = advantage.bootstrap_truncated(),
                   .duration_aware = advantage.duration_aware()};
  // A stored job that an older build has checked has neither gae nor these keys.
  if (advantage.kind() == "gae" || advantage.lam() != 0) out.advantage.lam = advantage.lam();
  if (advantage.has_lam_value()) out.advantage.lam_value = advantage.lam_value();
  if (advantage.has_lam_alpha()) out.advantage.lam_alpha = advantage.lam_alpha();
  if (advantage.has_kl_target()) out.advantage.kl_target = advantage.kl_target();
  if (advantage.kl_horizon() != 0) out.advantage.kl_horizon = advantage.kl_horizon();
  VisitLossFields(out.loss, LossReader{spec.algorithm().loss()});
  // A job that an older build has stored does not have the block.
  if (spec.algorithm().has_distill()) {
    const job::v1::Distill& distill = spec.algorithm().distill();
    out.distill = {.kind = distill.kind(), .coef = distill.coef(), .top_k = distill.top_k()};
    if (distill.has_trust_region()) out.distill.trust_region = distill.trust_region();
  }
  return out;
}

void ApplyLossDefaults(const std::function<bool(const char* field)>& given, job::v1::Loss* loss) {
  const Row<LossEntry>* row = FindRow(LossRows(), loss->kind());
  if (row == nullptr) return;
  LossSpec wanted;
  VisitLossFields(wanted, LossReader{*loss});
  const LossSpec plain;
  wanted.clip_low = plain.clip_low;
  wanted.clip_high = plain.clip_high;
  wanted.dual = plain.dual;
  wanted.tis_low = plain.tis_low;
  wanted.tis_outside = plain.tis_outside;
  wanted.aggregation = plain.aggregation;
  if (row->value.defaults != nullptr) row->value.defaults(wanted);
  VisitLossFields(wanted, [&](const char* name, const auto& value) {
    if (!given(name)) LossWriter{*loss}(name, value);
  });
}

void ApplyPreset(const AlgorithmSpec& preset, job::v1::Algorithm* algorithm) {
  job::v1::Advantage& advantage = *algorithm->mutable_advantage();
  advantage.set_kind(preset.advantage.kind);
  advantage.clear_group_filter();
  if (preset.advantage.signal_filter) advantage.set_group_filter("signal");
  advantage.set_max_rejected_steps(static_cast<uint32_t>(preset.advantage.max_rejected_steps));
  advantage.set_truncated(preset.advantage.truncated);
  advantage.set_kl(preset.advantage.kl);
  advantage.set_gamma(preset.advantage.gamma);
  // No preset changes the others.

  VisitLossFields(preset.loss, LossWriter{*algorithm->mutable_loss()});
}

}  // namespace sluice
