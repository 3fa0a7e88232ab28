#include "services/rollout/core/engine/native/native_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

NativeEngine::Options Complete(NativeEngine::Options options, const ModelConfig& config) {
  if (options.max_context == 0) options.max_context = static_cast<uint32_t>(config.max_context);
  options.max_batch_tokens = std::max(options.max_batch_tokens, options.slots);
  return options;
}

uint32_t BlocksPerSlot(uint32_t max_context) { return (max_context - 1) / DecodeModel::kBlockTokens + 1; }

}  // namespace

absl::StatusOr<std::unique_ptr<NativeEngine>> NativeEngine::Create(const ModelConfig& config, TensorSet weights,
                                                                   PolicyVersion version, std::vector<int32_t> stop_ids,
                                                                   const Options& options) {
  const Options complete = Complete(options, config);
  const uint64_t blocks = uint64_t{complete.slots} * BlocksPerSlot(complete.max_context);
  if (blocks > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(complete.slots, " slots of ", complete.max_context, " tokens are ", blocks,
                                                   " KV blocks, the limit is ", INT32_MAX, "; lower one of them"));
  }
  auto owned = std::make_unique<TensorSet>(std::move(weights));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<DecodeModel> model,
                          DecodeModel::Create(config, owned.get(),
                                              {.blocks = static_cast<int>(blocks),
                                               .max_context = static_cast<int>(complete.max_context),
                                               .threads = complete.threads}));
  return std::unique_ptr<NativeEngine>(
      new NativeEngine(complete, version, std::move(stop_ids), std::move(owned), std::move(model)));
}

NativeEngine::NativeEngine(Options options, PolicyVersion version, std::vector<int32_t> stop_ids,
                           std::unique_ptr<TensorSet> weights, std::unique_ptr<DecodeModel> model)
    : options_(options),
      caps_{.exact_stamps = true,
            .verifies = true,
            .in_flight_switch = true,
            .position_seeds = true,
            .kept_sets = false,
            .routing = false,
            .deterministic = true},
      model_stop_ids_(std::move(stop_ids)),
      weights_(std::move(weights)),
      model_(std::move(model)),
      scheduler_({.slots = options.slots, .max_batch_tokens = options.max_batch_tokens, .aging_steps = options.aging_steps}),
      version_(version),
      held_(FingerprintOf(*weights_)) {
  const uint32_t per_slot = BlocksPerSlot(options.max_context);
  blocks_.resize(size_t{options.slots} * per_slot);
  std::iota(blocks_.begin(), blocks_.end(), 0);
  for (uint32_t slot = 0; slot < options.slots; ++slot) tables_.push_back(absl::MakeConstSpan(blocks_).subspan(slot * per_slot, per_slot));
}

absl::Status NativeEngine::Check(const Request& request) const {
  SLUICE_RETURN_IF_ERROR(CheckSampling(request.sampling, request.trainable));
  if (request.text || request.kept_sets || request.raw_logprobs || request.top_logprobs > 0) {
    return absl::InvalidArgumentError("text, kept_sets, raw_logprobs and top_logprobs: this engine does not report them");
  }
  if (request.prompt == nullptr || request.prompt->empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  const uint64_t total = request.prompt->size() + uint64_t{request.sampling.max_tokens};
  if (total > options_.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("prompt of ", request.prompt->size(), " tokens and max_tokens ",
                                                   request.sampling.max_tokens, " exceed the context of ", options_.max_context));
  }
  if (request.sampled.size() >= request.sampling.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("the answer has ", request.sampled.size(), " tokens already, max_tokens is ",
                                                   request.sampling.max_tokens));
  }
  const int64_t vocab = model_->config().vocab_size;
  for (const std::vector<int32_t>* tokens : {request.prompt.get(), &request.sampled}) {
    for (int32_t token : *tokens) {
      if (token < 0 || token >= vocab) {
        return absl::InvalidArgumentError(absl::StrCat("token ", token, " is outside the vocabulary of ", vocab));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status NativeEngine::AddRequest(Request request) {
  SLUICE_RETURN_IF_ERROR(Annotate(Check(request), absl::StrCat("request ", request.id)));
  const uint32_t prompt = static_cast<uint32_t>(request.prompt->size());
  SLUICE_RETURN_IF_ERROR(scheduler_.Add({.id = request.id,
                                         .group = request.group,
                                         .order_class = static_cast<uint8_t>(request.order),
                                         .target_step = request.target_step,
                                         .prompt = prompt,
                                         .known = prompt + static_cast<uint32_t>(request.sampled.size())}));
  Live live;
  live.prompt = prompt;
  live.end = prompt + request.sampling.max_tokens;
  live.tokens.reserve(std::min<size_t>(live.end, prompt + request.sampled.size() + 256));
  live.tokens = *request.prompt;
  live.tokens.insert(live.tokens.end(), request.sampled.begin(), request.sampled.end());
  live.stop_ids = request.sampling.stop_ids;
  if (!request.sampling.ignore_eos) live.stop_ids.insert(live.stop_ids.end(), model_stop_ids_.begin(), model_stop_ids_.end());
  live.sampling = std::move(request.sampling);
  live.seed = request.seed;
  live.member = request.member;
  live_.emplace(request.id, std::move(live));
  return absl::OkStatus();
}

void NativeEngine::Abort(uint64_t request, AbortReason) {
  scheduler_.Remove(request);
  live_.erase(request);
}

void NativeEngine::Compute(const SchedulerPlan& plan) {
  for (const SchedulerPlan::Copy& copy : plan.copies) {
    for (uint32_t i = 0; i * DecodeModel::kBlockTokens < copy.count; ++i) model_->CopyBlock(tables_[copy.from][i], tables_[copy.to][i]);
    stats_.prompt_tokens_forked += copy.count;
  }
  rows_.clear();
  sampling_.clear();
  for (const SchedulerPlan::Row& row : plan.rows) {
    const Live& live = live_.at(row.request);
    for (uint32_t i = 0; i < row.count; ++i) {
      const uint32_t position = row.first + i;
      rows_.push_back({.table = static_cast<int32_t>(row.slot),
                       .position = static_cast<int32_t>(position),
                       .token = live.tokens[position],
                       .want_logits = row.sample && i + 1 == row.count});
      if (position < live.prompt) ++stats_.prompt_tokens_computed;
    }
    if (row.sample) sampling_.push_back(&row);
  }
  const size_t wanted = sampling_.size() * model_->config().vocab_size;
  if (logits_.size() < wanted) logits_.resize(wanted);
  model_->Step(rows_, tables_, logits_.data());
}

void NativeEngine::Draw() {
  const int64_t vocab = model_->config().vocab_size;
  sample_rows_.clear();
  for (size_t i = 0; i < sampling_.size(); ++i) {
    const Live& live = live_.at(sampling_[i]->request);
    const bool may_stop = live.tokens.size() - live.prompt >= live.sampling.min_tokens;
    sample_rows_.push_back({.logits = logits_.data() + i * vocab,
                            .key = live.seed,
                            .position = static_cast<uint32_t>(live.tokens.size()),
                            .member = live.member,
                            .temperature = live.sampling.temperature,
                            .banned = live.stop_ids.data(),
                            .banned_count = may_stop ? 0 : static_cast<int32_t>(live.stop_ids.size())});
  }
  draws_.resize(sample_rows_.size());
  SampleCpu(sample_rows_.data(), static_cast<int64_t>(sample_rows_.size()), vocab, draws_.data());
}

absl::StatusOr<StepEvents> NativeEngine::Step() {
  StepEvents events;
  const SchedulerPlan& plan = scheduler_.Plan();
  if (plan.rows.empty()) return events;
  Compute(plan);
  Draw();
  events.rows = plan.tokens;
  events.prefill_rows = plan.tokens - static_cast<uint32_t>(sampling_.size());
  events.tokens.reserve(draws_.size());
  ended_.clear();
  for (size_t i = 0; i < draws_.size(); ++i) {
    const uint64_t id = sampling_[i]->request;
    Live& live = live_.at(id);
    if (draws_[i].token < 0) {
      ++stats_.nonfinite_rows;
      events.failures.push_back({id, Error(absl::StatusCode::kDataLoss, "NONFINITE",
                                           absl::StrCat("request ", id, ": logits at position ", live.tokens.size(),
                                                        " are not finite under version ", version_.str()))});
      ended_.push_back(id);
      continue;
    }
    const int32_t token = draws_[i].token;
    TokenEvent event{.request = id,
                     .position = static_cast<uint32_t>(live.tokens.size()),
                     .token = token,
                     .logprob = draws_[i].logprob,
                     .version = version_};
    live.tokens.push_back(token);
    if (std::find(live.stop_ids.begin(), live.stop_ids.end(), token) != live.stop_ids.end()) {
      event.finish = FinishReason::kStop;
    } else if (live.tokens.size() >= live.end) {
      event.finish = FinishReason::kLength;
    }
    if (event.finish != FinishReason::kNone) ended_.push_back(id);
    events.tokens.push_back(event);
  }
  stats_.tokens_generated += events.tokens.size();
  scheduler_.Advance(ended_);
  for (uint64_t id : ended_) live_.erase(id);
  return events;
}

EngineStats NativeEngine::Stats() const {
  EngineStats stats = stats_;
  stats.slots = options_.slots;
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  stats.steps = scheduler_.steps();
  stats.kv_tokens = scheduler_.held_tokens();
  stats.kv_capacity = uint64_t{options_.slots} * options_.max_context;
  stats.version = version_;
  return stats;
}

}  // namespace sluice
