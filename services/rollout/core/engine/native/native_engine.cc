#include "services/rollout/core/engine/native/native_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/machine_memory.h"
#include "common/base/status.h"
#include "common/models/adapter.h"
#include "common/tokenizer/detokenizer.h"

namespace sluice {
namespace {

// Most prompt tokens that a request with prompt_logprobs computes per step. Each of them needs a
// row of logits, which takes memory for the whole vocabulary.
constexpr uint32_t kScoredChunk = 32;

static_assert(kBlockTokens == DecodeModel::kBlockTokens);

NativeEngine::Options Complete(NativeEngine::Options options, const ModelConfig& config) {
  if (options.max_context == 0) options.max_context = static_cast<uint32_t>(config.max_context);
  options.max_batch_tokens = std::max(options.max_batch_tokens, options.slots);
  return options;
}

std::vector<int64_t> BytesOfTensors(absl::Span<const TensorSpec> specs) {
  std::vector<int64_t> bytes;
  for (const TensorSpec& spec : specs) bytes.push_back(*NumBytes(spec));
  return bytes;
}

std::vector<TokenLogprob> MostLikely(const SampleRow& row, int64_t vocab, uint32_t most) {
  int32_t ids[kMaxTopLogprobs];
  float logprobs[kMaxTopLogprobs];
  const int32_t count = TopLogprobsCpu(row, vocab, static_cast<int32_t>(most), ids, logprobs);
  std::vector<TokenLogprob> top;
  for (int32_t k = 0; k < count; ++k) top.push_back({ids[k], logprobs[k]});
  return top;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NativeEngine>> NativeEngine::Create(const ModelConfig& config,
                                                                   TensorSet weights,
                                                                   PolicyVersion version,
                                                                   std::vector<int32_t> stop_ids,
                                                                   const Options& options) {
  Options complete = Complete(options, config);
  const uint64_t blocks = options.blocks > 0
                              ? options.blocks
                              : uint64_t{complete.slots} * BlocksFor(complete.max_context);
  if (blocks > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        complete.slots, " slots of ", complete.max_context, " tokens are ", blocks,
        " KV blocks; the limit is ", INT32_MAX, ", so lower the slots or the context"));
  }
  complete.blocks = static_cast<uint32_t>(blocks);

  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<DecodeModel> model,
      DecodeModel::Create(config, &weights,
                          {.blocks = static_cast<int>(blocks),
                           .max_context = static_cast<int>(complete.max_context),
                           .threads = complete.threads}));

  // Found out here, and not when the second version comes.
  const auto each = static_cast<uint64_t>(model->weights().bytes());
  const uint64_t wanted =
      static_cast<uint64_t>(model->memory_bytes()) + (complete.max_versions - 1) * each;
  if (complete.max_versions > 1 && wanted > MachineMemory()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        complete.max_versions, " versions of the weights, ", each, " bytes each, and the KV cache ",
        "are ", wanted, " bytes, but this machine has ", MachineMemory(),
        "; lower weights.resident_versions, or use weights.inflight: switch"));
  }
  return std::unique_ptr<NativeEngine>(new NativeEngine(complete, version, std::move(stop_ids),
                                                        weights.layout_id(), std::move(model)));
}

NativeEngine::NativeEngine(Options options, PolicyVersion version, std::vector<int32_t> stop_ids,
                           std::string layout_id, std::unique_ptr<DecodeModel> model)
    : options_(options),
      caps_{.exact_stamps = true,
            .verifies = true,
            .in_flight_switch = true,
            .position_seeds = true,
            .kept_sets = true,
            .routing = model->config().num_experts > 0,
            .deterministic = true},
      model_stop_ids_(std::move(stop_ids)),
      layout_id_(std::move(layout_id)),
      model_(std::move(model)),
      full_pass_seconds_(0),
      version_(version),
      held_(ReadHeld(version)),
      scheduler_({.blocks = options.blocks,
                  .max_running = options.slots,
                  .adapt = options.adapt,
                  .max_batch_tokens = options.max_batch_tokens,
                  .aging_steps = options.aging_steps,
                  .salt = Salt()}) {}

NativeEngine::~NativeEngine() = default;

NativeEngine::HeldWeights NativeEngine::ReadHeld(PolicyVersion version) {
  std::vector<Fingerprint> tensors = ReadAll();
  const Fingerprint state = Sum(tensors);
  return {.version = version,
          .state = state,
          .tensors = std::move(tensors),
          .rotation = VerifyRotation(BytesOfTensors(model_->weights().specs()))};
}

// The type of keys and values follows from those of the weights, which the layout id covers. What
// was computed before damage was found is perhaps not what its weights give, so it is not used.
KvHash NativeEngine::Salt() const {
  const std::string job = damages_ == 0 ? options_.job : absl::StrCat(options_.job, "+", damages_);
  return KvSalt(job, held_.state.f, layout_id_);
}

bool NativeEngine::HasRoom() const {
  return !keeps_versions() || damaged_ || older_.size() + 1 < options_.max_versions;
}

void NativeEngine::FreeUnusedWeights() {
  std::erase_if(older_,
                [&](const OlderWeights& older) { return scheduler_.keepers(older.epoch) == 0; });
}

void NativeEngine::DropOlder() {
  scheduler_.DropKeptWeights();
  older_.clear();
}

uint64_t NativeEngine::EpochOf(PolicyVersion version) const {
  if (version == held_.version) return scheduler_.epoch();
  for (const OlderWeights& older : older_) {
    if (older.version == version) return older.epoch;
  }
  return 0;
}

absl::Status NativeEngine::CheckRequest(const Request& request) const {
  SLUICE_RETURN_IF_ERROR(CheckSampling(request.sampling, request.trainable));
  if (request.top_logprobs > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_logprobs is ", request.top_logprobs, "; the limit is ", kMaxTopLogprobs));
  }
  if (request.adapter != nullptr &&
      (request.trainable || !request.adapter->Fits(model_->config()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "adapter ", request.adapter->path(),
        request.trainable ? ": an answer that is trained on must be sampled without an adapter"
                          : " was made for another model"));
  }

  if (request.prompt == nullptr || request.prompt->empty())
    return absl::InvalidArgumentError("the prompt has no tokens");
  const uint64_t total = request.prompt->size() + uint64_t{request.sampling.max_tokens};
  if (total > options_.max_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt of ", request.prompt->size(), " tokens and max_tokens ",
                     request.sampling.max_tokens, " exceed the context of ", options_.max_context));
  }
  if (request.sampled.size() >= request.sampling.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("the answer has ", request.sampled.size(),
                                                   " tokens already, but max_tokens is ",
                                                   request.sampling.max_tokens));
  }

  const int64_t vocab = model_->config().vocab_size;
  if (request.given != -1 &&
      (request.given < 0 || request.given >= vocab || request.sampling.max_tokens != 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token ", request.given, " is given as an answer of ", request.sampling.max_tokens,
        " tokens; wanted: an answer of 1, from the vocabulary of ", vocab));
  }
  for (const std::vector<int32_t>* tokens : {request.prompt.get(), &request.sampled}) {
    for (int32_t token : *tokens) {
      if (token < 0 || token >= vocab) {
        return absl::InvalidArgumentError(
            absl::StrCat("token ", token, " is outside the vocabulary of ", vocab));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status NativeEngine::MakeDetokenizer(const Request& request, RequestState* state) const {
  if (!request.text && request.sampling.stop.empty()) return absl::OkStatus();
  if (tokenizer_ == nullptr) {
    return absl::FailedPreconditionError(
        "text and stop texts need a tokenizer; the model's directory has no tokenizer.json");
  }
  SLUICE_ASSIGN_OR_RETURN(state->detokenizer,
                          Detokenizer::Create(tokenizer_, {.stops = request.sampling.stop}));

  // The detokenizer takes the tokens of a resumed prefix like new ones. The caller has the text of
  // these tokens already, so the text is dropped.
  state->detokenizer->Prime(*request.prompt);
  std::string before;
  for (int32_t token : request.sampled) {
    if (state->detokenizer->Push(token, &before)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the answer so far holds the stop text sampling.stop[",
                       state->detokenizer->matched_stop(), "], so it has ended; do not resume it"));
    }
  }
  return absl::OkStatus();
}

absl::Status NativeEngine::AddRequest(Request request) {
  SLUICE_RETURN_IF_ERROR(CheckRequest(request));
  auto state = std::make_unique<RequestState>();
  SLUICE_RETURN_IF_ERROR(MakeDetokenizer(request, state.get()));
  state->prompt = static_cast<uint32_t>(request.prompt->size());
  state->end = state->prompt + request.sampling.max_tokens;

  SchedulerRequest scheduled{.id = request.id,
                             .group = request.group,
                             .order_class = static_cast<uint8_t>(request.order),
                             .target_step = request.target_step,
                             .ages = request.order != RequestClass::kIdle,
                             .prompt = state->prompt,
                             .end = state->end};
  if (request.prompt_logprobs) scheduled.chunk = kScoredChunk;
  scheduled.keeps_weights = keeps_versions() && request.trainable;
  if (scheduled.keeps_weights && request.sampled_under.has_value())
    scheduled.epoch = EpochOf(*request.sampled_under);
  if (request.adapter != nullptr) scheduled.root = KvRoot(request.adapter->digest());
  scheduled.tokens.reserve(
      std::min<size_t>(state->end, state->prompt + request.sampled.size() + 256));
  scheduled.tokens = *request.prompt;
  scheduled.tokens.insert(scheduled.tokens.end(), request.sampled.begin(), request.sampled.end());
  SLUICE_RETURN_IF_ERROR(scheduler_.Add(std::move(scheduled)));

  // Nothing below can fail, so scheduler and requests_ have the same requests.
  state->stop_ids = request.sampling.stop_ids;
  if (!request.sampling.ignore_eos)
    state->stop_ids.insert(state->stop_ids.end(), model_stop_ids_.begin(), model_stop_ids_.end());
  state->sampling = std::move(request.sampling);
  state->adapter = std::move(request.adapter);
  state->seed = request.seed;
  state->member = request.member;
  state->given = request.given;
  state->kept_sets = request.kept_sets;
  state->routing = request.routing;
  state->raw_logprobs = request.raw_logprobs;
  state->top_logprobs = request.top_logprobs;
  if (request.prompt_logprobs) {
    state->prompt_logprobs.resize(state->prompt - 1);
    if (state->top_logprobs > 0) state->prompt_top.resize(state->prompt - 1);
  }
  requests_.emplace(request.id, std::move(state));
  return absl::OkStatus();
}

void NativeEngine::Abort(uint64_t request, AbortReason) {
  scheduler_.Remove(request);
  requests_.erase(request);
  FreeUnusedWeights();
}

// Does what bad memory may do: overwrites the first block of a running answer with another block.
void NativeEngine::CorruptKv(const SchedulerPlan& plan) {
  const int other = static_cast<int>(options_.blocks) - 1;
  for (const SchedulerPlan::Row& row : plan.rows) {
    if (row.first == 0 || row.blocks[0] == other) continue;
    if (!HitFailpoint("rollout.kv.corrupt").ok()) model_->CopyBlock(other, row.blocks[0]);
    return;
  }
}

void NativeEngine::ComputeLogits(const SchedulerPlan& plan) {
  for (const BlockManager::Copy& copy : plan.copies) model_->CopyBlock(copy.from, copy.to);
  if (kHasFailpoints) CorruptKv(plan);

  sampling_.clear();
  scored_.clear();
  routing_.clear();
  size_t places = 0;
  for (const OlderWeights& older : older_)
    ComputeRows(plan, older.epoch, older.version, *older.weights, &places);
  ComputeRows(plan, scheduler_.epoch(), version_, model_->weights(), &places);
  if (!older_.empty()) {
    // The rows of a plan lie in one array.
    std::sort(sampling_.begin(), sampling_.end(),
              [](const Sampling& a, const Sampling& b) { return a.row < b.row; });
  }
}

// Computes those rows of the plan that belong to one set of weights. A row of the plan is a run of
// positions of one request; a row of the model is one position. *places counts the positions whose
// logits are wanted: the model writes their logits in this order.
void NativeEngine::ComputeRows(const SchedulerPlan& plan, uint64_t epoch, PolicyVersion version,
                               const DecodeWeights& weights, size_t* places) {
  const size_t first = *places;
  rows_.clear();
  tables_.clear();
  for (const SchedulerPlan::Row& row : plan.rows) {
    if (row.epoch != epoch) continue;
    RequestState* const state = requests_.at(row.request).get();
    for (uint32_t position = row.first; position < row.first + row.count; ++position) {
      const bool samples = row.sample && position + 1 == row.first + row.count;
      const bool scores = !state->prompt_logprobs.empty() && position + 1 < state->prompt;
      rows_.push_back({.table = static_cast<int32_t>(tables_.size()),
                       .position = static_cast<int32_t>(position),
                       .token = row.tokens[position],
                       .want_logits = samples || scores,
                       .adapter = state->adapter.get()});
      if (samples) sampling_.push_back({&row, state, *places, version});
      if (scores) scored_.push_back({state, position, row.tokens[position + 1], *places});
      *places += samples || scores;
    }
    tables_.push_back(row.blocks);
  }
  if (rows_.empty()) return;

  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  if (logits_.size() < *places * vocab) logits_.resize(*places * vocab);
  model_->StepWith(weights, rows_, tables_, logits_.data() + first * vocab);
  const absl::Span<const uint16_t> routing = model_->routing();
  routing_.insert(routing_.end(), routing.begin(), routing.end());
}

void NativeEngine::ScorePrompts() {
  const int64_t vocab = model_->config().vocab_size;
  for (const Scored& scored : scored_) {
    RequestState& state = *scored.state;
    const SampleRow row{.logits = logits_.data() + scored.logits * static_cast<size_t>(vocab),
                        .temperature = state.scoring_temperature()};
    state.prompt_logprobs[scored.position] =
        ScoreCpu(row.logits, vocab, row.temperature, scored.next).logprob;
    if (state.top_logprobs > 0)
      state.prompt_top[scored.position] = MostLikely(row, vocab, state.top_logprobs);
  }
}

void NativeEngine::DrawTokens() {
  const int64_t vocab = model_->config().vocab_size;

  // Before min_tokens the stop tokens are banned.
  sample_rows_.clear();
  bool keep = false;
  for (size_t i = 0; i < sampling_.size(); ++i) {
    const RequestState& state = *sampling_[i].state;
    const size_t known = sampling_[i].row->tokens.size();
    const bool may_stop = known - state.prompt >= state.sampling.min_tokens;
    sample_rows_.push_back(
        {.logits = logits_.data() + sampling_[i].logits * static_cast<size_t>(vocab),
         .key = state.seed,
         .position = static_cast<uint32_t>(known),
         .member = state.member,
         .temperature = state.sampling.temperature,
         .banned = state.stop_ids.data(),
         .banned_count = may_stop ? 0 : static_cast<int32_t>(state.stop_ids.size()),
         .top_k = static_cast<int32_t>(std::min<int64_t>(state.sampling.top_k, vocab)),
         .top_p = state.sampling.top_p > 0 ? state.sampling.top_p : 1,
         .min_p = static_cast<float>(state.sampling.min_p)});
    keep = keep || state.kept_sets;
  }

  // A kept set may be as large as the vocabulary, so the room for it is there only if it is wanted.
  if (keep) {
    kept_.resize(std::max(kept_.size(), sampling_.size() * vocab));
    for (size_t i = 0; i < sampling_.size(); ++i) {
      if (sampling_[i].state->kept_sets) sample_rows_[i].kept = kept_.data() + i * vocab;
    }
  }
  draws_.resize(sample_rows_.size());
  model_->Draw(sample_rows_, draws_.data());

  // A given token replaces the drawn one. A row that is not finite still fails.
  for (size_t i = 0; i < draws_.size(); ++i) {
    const RequestState& state = *sampling_[i].state;
    if (state.given < 0 || draws_[i].token < 0) continue;
    draws_[i] = {
        .token = state.given,
        .logprob = ScoreCpu(sample_rows_[i].logits, vocab, state.scoring_temperature(), state.given)
                       .logprob};
  }
}

// Adds to the event what the request asked for. Ends the answer if its text has a stop text.
void NativeEngine::AddDetails(size_t i, TokenEvent* event) {
  const int64_t vocab = model_->config().vocab_size;
  RequestState& state = *sampling_[i].state;
  auto details = std::make_shared<TokenDetails>();

  // A stop token is no part of the text. When the answer ends, the text that was held back may
  // still complete a stop text.
  if (state.detokenizer != nullptr) {
    bool stopped = false;
    if (event->finish != FinishReason::kStop)
      stopped = state.detokenizer->Push(event->token, &details->text);
    if (!stopped && event->finish != FinishReason::kNone)
      stopped = state.detokenizer->Finish(&details->text);
    if (stopped) event->finish = FinishReason::kStop;
    details->stop = state.detokenizer->matched_stop();
  }

  if (draws_[i].kept > 0 && draws_[i].kept < vocab) {
    details->kept.assign(sample_rows_[i].kept, sample_rows_[i].kept + draws_[i].kept);
  }

  if (state.routing) {
    // Experts per row.
    const size_t experts =
        static_cast<size_t>(model_->config().num_layers * model_->config().experts_per_token);
    const absl::Span<const uint16_t> routing =
        absl::MakeConstSpan(routing_).subspan(sampling_[i].logits * experts, experts);
    details->routing.assign(routing.begin(), routing.end());
  }

  // A row with nothing but logits describes the raw distribution: at temperature 1, without banned
  // tokens and cuts.
  SampleRow row = sample_rows_[i];
  if (state.raw_logprobs) {
    row = {.logits = row.logits};
    details->raw_logprob = LogprobCpu(row, vocab, event->token);
  }
  if (state.top_logprobs > 0) details->top = MostLikely(row, vocab, state.top_logprobs);

  details->prompt_logprobs = std::exchange(state.prompt_logprobs, {});
  details->prompt_top = std::exchange(state.prompt_top, {});
  event->details = std::move(details);
}

// Makes the event of the i-th drawn token.
TokenEvent NativeEngine::MakeEvent(size_t i) {
  const RequestState& state = *sampling_[i].state;
  const size_t known = sampling_[i].row->tokens.size();
  TokenEvent event{.request = sampling_[i].row->request,
                   .position = static_cast<uint32_t>(known),
                   .token = draws_[i].token,
                   .logprob = draws_[i].logprob,
                   .version = sampling_[i].version};
  if (std::find(state.stop_ids.begin(), state.stop_ids.end(), event.token) !=
      state.stop_ids.end()) {
    event.finish = FinishReason::kStop;
  } else if (known + 1 >= state.end) {
    event.finish = FinishReason::kLength;
  }
  if (state.wants_details()) AddDetails(i, &event);
  return event;
}

absl::StatusOr<StepEvents> NativeEngine::Step() {
  SLUICE_CHECK(!damaged_);
  StepEvents events;
  const auto start = std::chrono::steady_clock::now();
  const SchedulerPlan& plan = scheduler_.Plan();
  if (plan.rows.empty()) {
    scheduler_.Advance({});
    return events;
  }

  const auto planned = std::chrono::steady_clock::now();
  events.crowded_out = plan.crowded_out;
  ComputeLogits(plan);
  ScorePrompts();
  DrawTokens();

  events.rows = plan.tokens;
  events.prefill_rows = plan.tokens - static_cast<uint32_t>(sampling_.size());
  events.tokens.reserve(draws_.size());
  drawn_.clear();
  for (size_t i = 0; i < draws_.size(); ++i) {
    const uint64_t id = sampling_[i].row->request;
    if (draws_[i].token < 0) {
      ++stats_.nonfinite_rows;
      const PolicyVersion version = sampling_[i].version;
      events.failures.push_back(
          {id,
           Error(absl::StatusCode::kDataLoss, "NONFINITE",
                 absl::StrCat("the logits at position ", sampling_[i].row->tokens.size(),
                              " are not finite under version ", version.str())),
           version});
      drawn_.push_back({});
      requests_.erase(id);
      continue;
    }
    events.tokens.push_back(MakeEvent(i));
    stats_.tokens_generated += sampling_[i].state->given < 0;
    const bool ends = events.tokens.back().finish != FinishReason::kNone;
    drawn_.push_back({draws_[i].token, ends});
    if (ends) requests_.erase(id);
  }

  const auto drawn = std::chrono::steady_clock::now();
  scheduler_.Advance(drawn_);
  FreeUnusedWeights();
  schedule_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - drawn + (planned - start))
          .count();
  if (events.prefill_rows == 0)
    step_seconds_[steps_timed_++ % step_seconds_.size()] = SecondsSince(start);
  return events;
}

EngineStats NativeEngine::Stats() const {
  EngineStats stats = stats_;
  stats.slots = scheduler_.limit();
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  stats.steps = scheduler_.steps();
  stats.prompt_tokens_computed = scheduler_.prompt_tokens_computed();
  stats.prompt_tokens_forked = scheduler_.prompt_tokens_forked();
  stats.prompt_tokens_cached = scheduler_.prompt_tokens_cached();
  stats.preemptions = scheduler_.preemptions();
  stats.kv_tokens = uint64_t{scheduler_.blocks().active()} * kBlockTokens;
  stats.kv_capacity = uint64_t{options_.blocks} * kBlockTokens;
  stats.version = version_;
  stats.versions = 1 + static_cast<uint32_t>(older_.size());
  stats.oldest_version = older_.empty() ? version_ : older_.front().version;
  stats.oldest_answers = older_.empty() ? 0 : scheduler_.keepers(older_.front().epoch);
  stats.room_for_version = HasRoom();
  return stats;
}

}  // namespace sluice
