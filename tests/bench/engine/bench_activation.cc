// Measures how long new weights pause the running answers, and what they take in memory:
//   bench_activation [--model 35m|0.6b] [--dtype f32|bf16] [--density 0.01] [--batch 64]
//     [--every 20] [--updates 6] [--threads N] [--json]
//
// Two engines of the same random weights sample the same answers. One gets whole versions, which
// are built beside; the other goes back and forth between two versions by a delta that changes a
// share `density` of the elements. In a job, what comes before the pause happens while the engine
// samples, so it is shown apart.
//
// A third engine gets these deltas too, but holds two versions: its answers end with the version
// that they began with (weights.inflight: finish), and new ones take their places. It shows what a
// step costs that computes the rows of two versions.
//
// The baseline of a pause is the median decode step of the same run, so the ratio is the number of
// decode steps that an update costs. That of an apply is a copy of all weights in memory, on one
// thread. That of memory is the size of the published weights.

#include <CLI/CLI.hpp>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/models/team.h"
#include "common/weights/fingerprint.h"
#include "common/weights/staged.h"
#include "common/weights/weight_delta.h"
#include "services/rollout/core/engine/native/native_engine.h"
#include "tests/bench/engine/machine.h"
#include "tests/bench/report.h"
#include "tests/common/weights/make_delta.h"

namespace sluice::bench {
namespace {

// 33.6 M parameters.
constexpr absl::string_view kShape35M =
    R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 8192, "hidden_size": 512,
    "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8, )"
    R"("num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 4096, "tie_word_embeddings": false})";
// Qwen3-0.6B, 596 M parameters.
constexpr absl::string_view kShape06B =
    R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, )"
    R"("num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 4096, "tie_word_embeddings": true})";

struct Options {
  std::string model = "35m";
  DType dtype = DType::kF32;
  double density = 0.01;
  int batch = 64, every = 20, updates = 6;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  bool json = false;
};

struct Times {
  std::vector<double> steps, prepares, pauses, verifies;  // In ms.
};

// Moves a share `density` of the elements, most by one place, as an optimizer does.
void Move(TensorSet* weights, double density) {
  SplitMix64 random(11);
  const auto move = [&]<typename Word>(absl::Span<Word> elements) {
    for (Word& x : elements) {
      if (density < 1 && random.Uniform() >= density) continue;
      const uint64_t way = random.Next();
      const auto places = static_cast<Word>(way % 8 == 0 ? 1 + (way >> 8) % 100 : 1);
      x = static_cast<Word>(way >> 63 != 0 ? x + places : x - places);
    }
  };
  for (size_t i = 0; i < weights->size(); ++i) {
    if (weights->spec(i).dtype == DType::kF32) {
      move(weights->as<uint32_t>(i));
    } else {
      move(weights->as<uint16_t>(i));
    }
  }
}

// The ways from `old` to `now` and back.
std::pair<StagedWeights, StagedWeights> MakeDeltas(TensorSet old, const TensorSet& now) {
  const Fingerprint from = FingerprintOf(old), to = FingerprintOf(now);
  WeightDelta there = MakeDelta(std::move(old), now), back = there;
  back.base = to;
  back.tensor_states.clear();
  for (SignedChunk& part : back.chunks) part.sign = -1;
  return {{.state = to, .delta = std::make_shared<const WeightDelta>(std::move(there))},
          {.state = from, .delta = std::make_shared<const WeightDelta>(std::move(back))}};
}

constexpr uint32_t kPrompt = 128;

// A request of `tokens` tokens.
Request RequestOf(int number, uint32_t tokens) {
  auto prompt = std::make_shared<std::vector<int32_t>>();
  for (uint32_t t = 0; t < kPrompt; ++t)
    prompt->push_back(static_cast<int32_t>((t * 37 + static_cast<uint32_t>(number) * 101) % 8192));
  return {.id = static_cast<uint64_t>(number + 1),
          .prompt = prompt,
          .seed = 7,
          .member = static_cast<uint32_t>(number),
          .sampling = {.max_tokens = tokens}};
}

std::unique_ptr<NativeEngine> MakeEngine(const Options& options, const ModelConfig& config,
                                         const TensorSet& weights, uint32_t max_versions = 1) {
  const auto new_tokens = static_cast<uint32_t>(options.every * (options.updates + 1));
  auto engine = NativeEngine::Create(config, weights, {1, 1}, {},
                                     {.slots = static_cast<uint32_t>(options.batch),
                                      .max_context = kPrompt + new_tokens,
                                      .threads = options.threads,
                                      .max_versions = max_versions});
  SLUICE_CHECK_MSG(engine.ok(), engine.status().ToString());
  if (max_versions > 1) return *std::move(engine);
  for (int i = 0; i < options.batch; ++i)
    SLUICE_CHECK((*engine)->AddRequest(RequestOf(i, new_tokens)).ok());
  return *std::move(engine);
}

// Samples all answers, and activates stage(n) as update n every so many decode steps.
template <typename Stage>
Times Run(const Options& options, NativeEngine* engine, const Stage& stage) {
  Times times;
  int64_t update = 0;
  for (int step = 0; !engine->idle();) {
    const double start = Seconds();
    const auto events = engine->Step();
    SLUICE_CHECK(events.ok());
    if (events->prefill_rows > 0) continue;
    times.steps.push_back(1e3 * (Seconds() - start));

    if (++step % options.every != 0 || engine->idle()) continue;
    StagedWeights staged = stage(update++);
    staged.version = {1, 1 + update};
    const double prepare = Seconds();
    engine->PrepareWeights(&staged);
    times.prepares.push_back(1e3 * (Seconds() - prepare));
    const auto activation = engine->ActivateWeights(staged, KvPolicy::kKeep);
    SLUICE_CHECK(activation.ok() && activation->accepted);
    times.pauses.push_back(1e3 * activation->seconds);
    times.verifies.push_back(1e3 * activation->verify_seconds);
  }
  return times;
}

// Gives the engine, which may hold two versions, a new answer for each one that ends. The answers
// end in two halves, one in the middle of the other, so that for a while after an update a step has
// rows of two versions. The times of these steps go to *two.
template <typename Stage>
Times RunFinishing(const Options& options, NativeEngine* engine, const Stage& stage,
                   std::vector<double>* two) {
  const auto longest = static_cast<uint32_t>(options.every);
  Times times;
  int next = 0, since = 0;
  const auto add = [&](uint32_t tokens) {
    SLUICE_CHECK(engine->AddRequest(RequestOf(next++, tokens)).ok());
  };
  for (int i = 0; i < options.batch; ++i) add(i % 2 == 0 ? longest : (longest + 1) / 2);

  for (int64_t update = 0; update < options.updates;) {
    const double start = Seconds();
    const auto events = engine->Step();
    SLUICE_CHECK(events.ok());
    if (events->prefill_rows == 0)
      (engine->Stats().versions == 2 ? *two : times.steps).push_back(1e3 * (Seconds() - start));
    for (const TokenEvent& event : events->tokens) {
      if (event.finish != FinishReason::kNone) add(longest);
    }
    if (++since < 2 * options.every || !engine->Stats().room_for_version) continue;

    since = 0;
    StagedWeights staged = stage(update++);
    staged.version = {1, 1 + update};
    const double prepare = Seconds();
    engine->PrepareWeights(&staged);
    times.prepares.push_back(1e3 * (Seconds() - prepare));
    const auto activation = engine->ActivateWeights(staged, KvPolicy::kKeep);
    SLUICE_CHECK(activation.ok() && activation->accepted);
    times.pauses.push_back(1e3 * activation->seconds);
    times.verifies.push_back(1e3 * activation->verify_seconds);
  }
  return times;
}

void AddTimes(const Report& report, const std::string& kind, const Times& times) {
  const double step = Median(times.steps);
  const auto add = [&](const std::string& what, double value, const std::vector<double>& of) {
    report.Add({.name = kind + what,
                .value = value,
                .unit = "ms",
                .baseline = step,
                .runs = static_cast<int>(of.size())});
  };
  report.Add({.name = kind + "_decode_step",
              .value = step,
              .unit = "ms",
              .runs = static_cast<int>(times.steps.size())});
  add("_pause", Median(times.pauses), times.pauses);
  add("_pause_p99", Quantile(times.pauses, 0.99), times.pauses);
  add("_reading_again", Median(times.verifies), times.verifies);
  add("_before_pause", Median(times.prepares), times.prepares);
}

// The time that a delta takes in place on all threads, and that of a copy of all weights on one.
void AddApply(const Report& report, const Options& options, NativeEngine* engine,
              const WeightDelta& delta) {
  constexpr int kRuns = 6;
  auto weights = *engine->weights().Copy();
  const auto bytes = static_cast<size_t>(weights->bytes());
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> applies, copies;
  Team team(options.threads, "bench");
  for (int run = 0; run < kRuns; ++run) {
    double start = Seconds();
    weights->Apply(delta, run % 2 == 0 ? +1 : -1, &team);
    applies.push_back(1e3 * (Seconds() - start));
    start = Seconds();
    std::memcpy(to.data(), from.data(), bytes);
    copies.push_back(1e3 * (Seconds() - start));
  }
  const double apply = Median(applies);
  report.Add({.name = "apply_in_place",
              .value = apply,
              .unit = "ms",
              .baseline = Median(copies),
              .runs = kRuns});
  report.Add({.name = "applied_changes",
              .value = static_cast<double>(delta.changed()) / apply / 1e3,
              .unit = "M/s",
              .runs = kRuns});
}

void Measure(const Options& options) {
  const ModelConfig config =
      *ParseModelConfig(options.model == "35m" ? kShape35M : kShape06B, "shape");
  TensorSet weights = *InitWeights(config, 1, options.dtype);
  double published = 0;
  for (size_t i = 0; i < weights.size(); ++i) published += static_cast<double>(weights.bytes(i));
  const Report report(options.json);

  auto whole = MakeEngine(options, config, weights);
  const auto held = static_cast<double>(whole->weights().bytes());
  AddTimes(report, "whole", Run(options, whole.get(), [&](int64_t update) {
             auto tensors = std::make_shared<const TensorSet>(
                 *InitWeights(config, static_cast<uint64_t>(2 + update), options.dtype));
             return StagedWeights{.state = FingerprintOf(*tensors), .tensors = tensors};
           }));
  whole.reset();

  auto engine = MakeEngine(options, config, weights);
  auto finishing = MakeEngine(options, config, weights, /*max_versions=*/2);
  std::pair<StagedWeights, StagedWeights> deltas;
  {
    TensorSet now = weights;
    Move(&now, options.density);
    deltas = MakeDeltas(std::move(weights), now);
  }
  AddTimes(report, "delta", Run(options, engine.get(), [&](int64_t update) {
             return update % 2 == 0 ? deltas.first : deltas.second;
           }));
  std::vector<double> two;
  const Times finish = RunFinishing(
      options, finishing.get(),
      [&](int64_t update) { return update % 2 == 0 ? deltas.first : deltas.second; }, &two);
  finishing.reset();
  AddTimes(report, "finish", finish);
  report.Add({.name = "finish_step_of_two_versions",
              .value = Median(two),
              .unit = "ms",
              .baseline = Median(finish.steps),
              .runs = static_cast<int>(two.size())});
  const WeightDelta& delta = *deltas.first.delta;
  AddApply(report, options, engine.get(), delta);

  const auto add_memory = [&](const char* name, double bytes) {
    report.Add({.name = name, .value = bytes / 1e6, .unit = "MB", .baseline = published / 1e6});
  };
  add_memory("memory_of_weights", held);
  add_memory("memory_of_a_delta", static_cast<double>(delta.bytes()));
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures how long new weights pause running answers, for a Qwen3 shape of random "
      "parameters.");
  Options options;
  bool bf16 = false;
  app.add_option("--model", options.model, "shape: 35m (33.6 M parameters) or 0.6b (596 M)")
      ->check(CLI::IsMember({"35m", "0.6b"}))
      ->capture_default_str();
  app.add_option("--dtype", bf16, "type of the weights")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, bool>{{"f32", false}, {"bf16", true}}))
      ->default_str("f32");
  app.add_option("--density", options.density, "share of the elements that a delta changes")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "answers at once")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--every", options.every, "decode steps between two updates")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--updates", options.updates, "number of weight updates")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "number of compute threads")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--json", options.json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);
  if (bf16) options.dtype = DType::kBF16;

  Measure(options);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
