#include "services/trainer/core/context_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/collective/collective.h"
#include "services/trainer/core/byte_codec.h"
#include "services/trainer/core/optimizer.h"

namespace sluice::trainer {
namespace {

absl::Span<const float> ValuesOf(const at::Tensor& values) {
  return {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())};
}

// The gradient of `scores` that a backward pass has left; zeros if it has left none.
std::vector<float> TakeGradient(at::Tensor& scores) {
  std::vector<float> gradient(static_cast<size_t>(scores.numel()), 0.0f);
  if (scores.grad().defined()) absl::c_copy(ValuesOf(scores.grad().contiguous()), gradient.begin());
  scores.mutable_grad() = at::Tensor();
  return gradient;
}

}  // namespace

class ContextParallel::Wrapped final : public TrainModel {
 public:
  Wrapped(ContextParallel* context, uint32_t index, std::unique_ptr<TrainModel> model)
      : context_(context), index_(index), model_(std::move(model)) {}

  absl::StatusOr<TokenScores> Score(const PackedBatch& batch, absl::Span<const int64_t> targets,
                                    double temperature, const TeacherRows* teacher,
                                    const RouterBalance* balance) override {
    // Teachers and the balance of experts need numbers that only the owner has.
    const bool shared =
        teacher == nullptr && balance == nullptr && model_->CanShare(batch, context_->share_.world);
    if (c10::GradMode::is_enabled()) scores_ = {};
    if (!shared) return model_->Score(batch, targets, temperature, teacher, balance);
    SLUICE_ASSIGN_OR_RETURN(TokenScores scores,
                            context_->Score(index_, batch, targets, temperature));
    if (!c10::GradMode::is_enabled()) return scores;
    scores.logprobs.requires_grad_(true), scores.entropy.requires_grad_(true);
    scores_ = scores;
    return scores;
  }

  absl::Status Backward(const at::Tensor& loss, bool keep_graph) override {
    if (!scores_.logprobs.defined()) return model_->Backward(loss, keep_graph);
    SLUICE_RETURN_IF_ERROR(sluice::Backward(loss, keep_graph));
    const std::vector<float> logprobs = TakeGradient(scores_.logprobs),
                             entropy = TakeGradient(scores_.entropy);
    if (!keep_graph) scores_ = {};
    return context_->Backward(logprobs, entropy, keep_graph);
  }

  absl::Status Load(const TensorSet& weights) override { return model_->Load(weights); }
  absl::Status Store(TensorSet* weights) const override { return model_->Store(weights); }
  absl::Status CheckLayout(const TensorSet& weights) const override {
    return model_->CheckLayout(weights);
  }
  const std::vector<Parameter>& parameters() const override { return model_->parameters(); }
  void ZeroGrad() override { model_->ZeroGrad(); }
  void SetUnitMemory(UnitMemory* memory) override { model_->SetUnitMemory(memory); }
  absl::StatusOr<at::Tensor> Logits(const PackedBatch& batch) override {
    return model_->Logits(batch);
  }
  absl::StatusOr<TokenScores> ScoreShare(const PackedBatch& batch,
                                         absl::Span<const int64_t> targets, double temperature,
                                         const SequenceShare& share,
                                         std::vector<size_t>* scored) override {
    return model_->ScoreShare(batch, targets, temperature, share, scored);
  }
  bool CanShare(const PackedBatch& batch, int world) const override {
    return model_->CanShare(batch, world);
  }
  absl::StatusOr<std::vector<double>> CountExperts(const PackedBatch& batch,
                                                   absl::Span<const float> weights) override {
    return model_->CountExperts(batch, weights);
  }
  absl::StatusOr<TeacherRows> HeadInput(const PackedBatch& batch) override {
    return model_->HeadInput(batch);
  }
  absl::StatusOr<at::Tensor> Project(const PackedBatch& batch, const at::Tensor& weight,
                                     const at::Tensor& bias) override {
    return model_->Project(batch, weight, bias);
  }
  const ModelConfig& config() const override { return model_->config(); }

 private:
  ContextParallel* const context_;
  const uint32_t index_;
  const std::unique_ptr<TrainModel> model_;
  // Of the last pass with gradients, if the ranks have made it together; else undefined. The
  // owner's loss is a function of them.
  TokenScores scores_;
};

ContextParallel::ContextParallel(Ranks* ranks)
    : ranks_(ranks),
      share_{.rank = ranks->rank(),
             .world = ranks->world(),
             .copy_from =
                 [ranks](int owner, absl::Span<float> values) {
                   return ranks->collective().Broadcast(owner, values);
                 },
             .sum_to =
                 [ranks](int owner, absl::Span<float> values) {
                   return ranks->collective().SumTo(owner, values);
                 }} {
  // Of two kinds that ranks want at a time, the first is made first.
  backward_kind_ = ranks->passes().AddKind([this]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const Message message, Share(""));
    return MakeBackward(message.bytes);
  });
  forward_kind_ = ranks->passes().AddKind([this]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const Message message, Share(""));
    return MakeForward(message.bytes).status();
  });
}

std::unique_ptr<TrainModel> ContextParallel::Wrap(std::unique_ptr<TrainModel> model) {
  models_.push_back(model.get());
  return std::make_unique<Wrapped>(this, static_cast<uint32_t>(models_.size()) - 1,
                                   std::move(model));
}

absl::StatusOr<ContextParallel::Message> ContextParallel::Share(absl::string_view mine) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> all, ranks_->collective().Gather(mine));
  for (int rank = 0; rank < share_.world; ++rank) {
    if (!all[rank].empty()) return Message{rank, std::move(all[rank])};
  }
  return absl::InternalError("no rank has said what the pass of a long sequence is about");
}

absl::StatusOr<TokenScores> ContextParallel::Score(uint32_t model, const PackedBatch& batch,
                                                   absl::Span<const int64_t> targets,
                                                   double temperature) {
  ByteWriter out;
  out.Put(model);
  out.Put(static_cast<uint8_t>(c10::GradMode::is_enabled()));
  out.Put(temperature);
  out.Put(batch.tokens), out.Put(batch.positions), out.Put(batch.routing),
      out.Put(batch.score_rows);
  out.Put(std::vector<int64_t>(targets.begin(), targets.end()));
  const std::string mine = out.Take();
  while (true) {
    SLUICE_RETURN_IF_ERROR(ranks_->passes().Begin(forward_kind_));
    SLUICE_ASSIGN_OR_RETURN(const Message message, Share(mine));
    SLUICE_ASSIGN_OR_RETURN(TokenScores scores, MakeForward(message.bytes));
    if (message.owner == share_.rank) return scores;
  }
}

absl::StatusOr<TokenScores> ContextParallel::MakeForward(absl::string_view message) {
  ByteReader in(message);
  uint32_t model = 0;
  uint8_t with_gradients = 0;
  double temperature = 0;
  PackedBatch batch;
  std::vector<int64_t> targets;
  in.Get(&model), in.Get(&with_gradients), in.Get(&temperature);
  in.Get(&batch.tokens), in.Get(&batch.positions), in.Get(&batch.routing),
      in.Get(&batch.score_rows);
  in.Get(&targets);
  SLUICE_CHECK(in.done() && model < models_.size());
  batch.cu_seqlens = {0, static_cast<int64_t>(batch.tokens.size())};

  // The owner may compute gradients while this rank scores, or the other way round.
  const at::AutoGradMode mode(with_gradients != 0);
  Pass pass{.model = models_[model], .rows = targets.size()};
  SLUICE_ASSIGN_OR_RETURN(
      pass.scores, pass.model->ScoreShare(batch, targets, temperature, share_, &pass.scored));

  struct Row {
    uint64_t index;
    float logprob, entropy;
  };
  std::vector<Row> rows;
  const at::Tensor logprobs = pass.scores.logprobs.detach().contiguous(),
                   entropy = pass.scores.entropy.detach().contiguous();
  for (size_t i = 0; i < pass.scored.size(); ++i)
    rows.push_back({pass.scored[i], ValuesOf(logprobs)[i], ValuesOf(entropy)[i]});
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          ranks_->collective().Gather({reinterpret_cast<const char*>(rows.data()),
                                                       rows.size() * sizeof(Row)}));
  const int64_t n = static_cast<int64_t>(pass.rows);
  const TokenScores scores{at::empty({n}), at::empty({n}), {}, {}};
  for (const std::string& part : all) {
    for (size_t at = 0; at < part.size(); at += sizeof(Row)) {
      Row row;
      std::memcpy(&row, &part[at], sizeof(row));
      scores.logprobs.mutable_data_ptr<float>()[row.index] = row.logprob;
      scores.entropy.mutable_data_ptr<float>()[row.index] = row.entropy;
    }
  }
  ++passes_;
  if (with_gradients != 0) pass_ = std::move(pass);
  return scores;
}

absl::Status ContextParallel::Backward(absl::Span<const float> logprobs,
                                       absl::Span<const float> entropy, bool keep_graph) {
  ByteWriter out;
  out.Put(static_cast<int32_t>(optimizer_->selected()));
  out.Put(static_cast<uint8_t>(keep_graph));
  out.Put(std::vector<float>(logprobs.begin(), logprobs.end()));
  out.Put(std::vector<float>(entropy.begin(), entropy.end()));
  SLUICE_RETURN_IF_ERROR(ranks_->passes().Begin(backward_kind_));
  SLUICE_ASSIGN_OR_RETURN(const Message message, Share(out.Take()));
  SLUICE_CHECK(message.owner == share_.rank);  // There is one pass at a time.
  return MakeBackward(message.bytes);
}

absl::Status ContextParallel::MakeBackward(absl::string_view message) {
  ByteReader in(message);
  int32_t accumulator = 0;
  uint8_t keep_graph = 0;
  std::vector<float> logprobs, entropy;
  in.Get(&accumulator), in.Get(&keep_graph), in.Get(&logprobs), in.Get(&entropy);
  SLUICE_CHECK(in.done() && pass_.model != nullptr && logprobs.size() == pass_.rows &&
               entropy.size() == pass_.rows);

  // The row without a meaning of a rank that has no rows gets no gradient.
  std::vector<float> own_logprobs(std::max<size_t>(1, pass_.scored.size()), 0.0f),
      own_entropy = own_logprobs;
  for (size_t i = 0; i < pass_.scored.size(); ++i) {
    own_logprobs[i] = logprobs[pass_.scored[i]];
    own_entropy[i] = entropy[pass_.scored[i]];
  }
  const at::AutoGradMode mode(true);
  const at::Tensor loss = (pass_.scores.logprobs * at::tensor(own_logprobs)).sum() +
                          (pass_.scores.entropy * at::tensor(own_entropy)).sum();
  const int selected = optimizer_->selected();
  optimizer_->SelectAccumulator(accumulator);
  const absl::Status status = pass_.model->Backward(loss, keep_graph != 0);
  optimizer_->SelectAccumulator(selected);
  if (keep_graph == 0) pass_ = {};
  return status;
}

}  // namespace sluice::trainer
