#include "services/trainer/core/critic.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/trainer/core/losses/losses.h"
#include "services/trainer/core/sequences.h"
#include "services/trainer/core/shared_scores.h"

namespace sluice::trainer {
namespace {

constexpr char kHeadBias[] = "value_head.bias";
constexpr char kHeadWeight[] = "value_head.weight";

OptimizerSettings OptimizerOf(const Settings& settings) {
  OptimizerSettings optimizer = settings.optimizer;
  optimizer.lr = settings.critic.lr;
  optimizer.max_grad_norm = settings.critic.max_grad_norm;
  optimizer.schedule = "constant";
  optimizer.warmup = optimizer.total = 0;
  return optimizer;
}

// All parameters of a critic with this decoder, in the order of their names.
std::vector<TrainModel::Parameter> ParametersOf(const TrainModel& model) {
  std::vector<TrainModel::Parameter> parameters = model.parameters();
  for (const auto& [name, shape] : {std::pair<std::string, std::vector<int64_t>>{kHeadBias, {1}},
                                    {kHeadWeight, {1, model.config().hidden_size}}}) {
    at::Tensor tensor = at::zeros(shape, at::kFloat);
    tensor.requires_grad_(true);
    parameters.push_back({name, tensor});
  }
  SLUICE_CHECK(std::is_sorted(parameters.begin(), parameters.end(),
                              [](const auto& a, const auto& b) { return a.name < b.name; }));
  return parameters;
}

absl::Status MissingTensor(const std::string& name, absl::Span<const int64_t> shape) {
  return absl::InvalidArgumentError(
      absl::StrCat("the critic needs the tensor ", name, " as ", ShapeText(DType::kF32, shape),
                   ", which is missing or has another shape or type"));
}

// The sequence whose rows are the states before the trained tokens. With `bootstrap`, a last row is
// the state after the trajectory's last token.
Sequence StatesOf(const Trajectory& trajectory, uint32_t group, bool bootstrap) {
  Sequence sequence = MakeSequence(trajectory, group, 0);
  sequence.routing.clear();
  if (bootstrap) {
    sequence.tokens = trajectory.tokens;
    sequence.rows.push_back(static_cast<int32_t>(trajectory.tokens.size()) - 1);
    sequence.targets.push_back(0);  // It has no token to score.
  }
  return sequence;
}

}  // namespace

ModelConfig Critic::ConfigOf(ModelConfig policy) {
  policy.tie_word_embeddings = true;
  return policy;
}

Critic::Critic(std::unique_ptr<TrainModel> model, const Settings& settings, Ranks* ranks)
    : settings_(settings),
      ranks_(ranks),
      model_(std::move(model)),
      parameters_(ParametersOf(*model_)),
      bias_(parameters_[parameters_.size() - 2].tensor),
      weight_(parameters_.back().tensor),
      optimizer_(parameters_, OptimizerOf(settings), ranks, settings.shard != Shard::kNone) {}

absl::Status Critic::Load(const TensorSet* weights) {
  optimizer_.PreserveAll();
  optimizer_.ZeroGrad();
  optimizer_.Reset();
  for (const TrainModel::Parameter& parameter : parameters_) {
    float* const to = parameter.tensor.mutable_data_ptr<float>();
    if (parameter.name == kHeadBias || parameter.name == kHeadWeight) {
      std::fill_n(to, parameter.tensor.numel(), 0.0f);
    } else if (weights != nullptr) {
      const int64_t i = weights->Find(parameter.name);
      const auto shape = parameter.tensor.sizes();
      if (i < 0 || at::IntArrayRef(weights->spec(i).shape) != shape)
        return MissingTensor(parameter.name, shape.vec());
      SLUICE_RETURN_IF_ERROR(ConvertElements(weights->spec(i).dtype, weights->data(i), DType::kF32,
                                             to, parameter.tensor.numel()));
    }
  }
  return BroadcastParameters(*ranks_, parameters_);
}

absl::Status Critic::Restore(const TensorSource* parameters, const TensorSource* moments,
                             int64_t updates) {
  optimizer_.PreserveAll();
  optimizer_.ZeroGrad();
  if (parameters != nullptr) {
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < parameters->specs().size(); ++i) places[parameters->specs()[i].name] = i;
    for (const TrainModel::Parameter& parameter : parameters_) {
      const TensorSpec wanted{parameter.name, DType::kF32, parameter.tensor.sizes().vec()};
      const auto place = places.find(wanted.name);
      if (place == places.end() || !(parameters->specs()[place->second] == wanted))
        return MissingTensor(wanted.name, wanted.shape);
      SLUICE_RETURN_IF_ERROR(parameters->Read(place->second, 0, parameter.tensor.numel(),
                                              parameter.tensor.mutable_data_ptr<float>()));
    }
  }
  SLUICE_RETURN_IF_ERROR(BroadcastParameters(*ranks_, parameters_));
  return optimizer_.Restore(moments, updates);
}

absl::StatusOr<at::Tensor> Critic::Predict(MicroBatch& batch) {
  return WithoutRouting(batch, [&] { return model_->Project(batch.packed, weight_, bias_); });
}

absl::Status Critic::SetValues(std::vector<Group>& groups) {
  const bool bootstraps = settings_.algorithm.advantage.bootstrap_truncated;
  std::vector<Trajectory*> trajectories;
  std::vector<Sequence> sequences;
  for (const auto& [trajectory, group] : FindTrained(groups)) {
    trajectories.push_back(trajectory);
    sequences.push_back(StatesOf(*trajectory, group, bootstraps && trajectory->truncated));
  }
  const auto predict = [&](MicroBatch& batch) -> absl::StatusOr<std::vector<float>> {
    const at::NoGradGuard no_grad;
    SLUICE_ASSIGN_OR_RETURN(const at::Tensor values, Predict(batch));
    const float* const data = values.const_data_ptr<float>();
    return std::vector<float>(data, data + values.numel());
  };
  SLUICE_ASSIGN_OR_RETURN(
      std::vector<std::vector<float>> values,
      ScoreShared(std::move(sequences), settings_.micro_batch_tokens, *ranks_, predict));
  for (size_t i = 0; i < trajectories.size(); ++i) trajectories[i]->values = std::move(values[i]);
  return absl::OkStatus();
}

absl::Status Critic::AddGradients(MicroBatch& batch, ValueStats* stats) {
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor values, Predict(batch));
  try {
    return Backward(
        ValueTerm(values, batch.value, batch.value_target, settings_.critic.clip, stats));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("value loss: ", e.what()));
  }
}

}  // namespace sluice::trainer
