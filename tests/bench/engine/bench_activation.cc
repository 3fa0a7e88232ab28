// Measures how long new weights pause the running answers, for a Qwen3 shape of 33.6 M random
// parameters, with 64 answers and an update every 20 decode steps:
//   bench_activation [--dtype f32|bf16] [--batch 64] [--every 20] [--updates 6] [--threads N]
//     [--json]
//
// The baseline of the pause is the median decode step of the same run, so the ratio is the number
// of decode steps that an update costs.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/weights/fingerprint.h"
#include "common/weights/staged.h"
#include "services/rollout/core/engine/native/native_engine.h"
#include "tests/bench/engine/machine.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

constexpr absl::string_view kShape =
    R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 8192, "hidden_size": 512,
    "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8, )"
    R"("num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 4096, "tie_word_embeddings": false})";

struct Options {
  DType dtype = DType::kF32;
  int batch = 64, every = 20, updates = 6;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  bool json = false;
};

StagedWeights Stage(const ModelConfig& config, DType dtype, uint64_t seed) {
  auto tensors = std::make_shared<const TensorSet>(*InitWeights(config, seed, dtype));
  return {.version = {1, static_cast<int64_t>(seed)},
          .state = FingerprintOf(*tensors),
          .tensors = tensors};
}

void Measure(const Options& options) {
  constexpr uint32_t kPrompt = 128;
  const ModelConfig config = *ParseModelConfig(kShape, "shape");
  const uint32_t new_tokens = static_cast<uint32_t>(options.every * (options.updates + 1));
  auto engine = NativeEngine::Create(config, *InitWeights(config, 1, options.dtype), {1, 1}, {},
                                     {.slots = static_cast<uint32_t>(options.batch),
                                      .max_context = kPrompt + new_tokens,
                                      .threads = options.threads});
  SLUICE_CHECK_MSG(engine.ok(), engine.status().ToString());
  for (int i = 0; i < options.batch; ++i) {
    auto prompt = std::make_shared<std::vector<int32_t>>();
    for (uint32_t t = 0; t < kPrompt; ++t)
      prompt->push_back(static_cast<int32_t>((t * 37 + static_cast<uint32_t>(i) * 101) % 8192));
    SLUICE_CHECK((*engine)
                     ->AddRequest({.id = static_cast<uint64_t>(i + 1),
                                   .prompt = prompt,
                                   .seed = 7,
                                   .member = static_cast<uint32_t>(i),
                                   .sampling = {.max_tokens = new_tokens}})
                     .ok());
  }

  std::vector<double> steps, pauses;
  uint64_t seed = 1;
  for (int step = 0; !(*engine)->idle();) {
    const double start = Seconds();
    const auto events = (*engine)->Step();
    SLUICE_CHECK(events.ok());
    if (events->prefill_rows > 0) continue;
    steps.push_back(1e3 * (Seconds() - start));

    if (++step % options.every != 0 || (*engine)->idle()) continue;
    // In a job the weights are fetched and checked while the engine samples, so this is not timed.
    const StagedWeights staged = Stage(config, options.dtype, ++seed);
    const double pause = Seconds();
    const auto activation = (*engine)->ActivateWeights(staged, KvPolicy::kKeep);
    SLUICE_CHECK(activation.ok() && activation->accepted);
    pauses.push_back(1e3 * (Seconds() - pause));
  }

  const Report report(options.json);
  report.Add({.name = "decode_step",
              .value = Median(steps),
              .unit = "ms",
              .runs = static_cast<int>(steps.size())});
  report.Add({.name = "activation_pause",
              .value = Median(pauses),
              .unit = "ms",
              .baseline = Median(steps),
              .runs = static_cast<int>(pauses.size())});
  report.Add({.name = "activation_pause_longest",
              .value = *std::max_element(pauses.begin(), pauses.end()),
              .unit = "ms",
              .baseline = Median(steps),
              .runs = 1});
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures how long new weights pause running answers, for a Qwen3 shape of 33.6 M random "
      "parameters.");
  Options options;
  bool bf16 = false;
  app.add_option("--dtype", bf16, "type of the weights")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, bool>{{"f32", false}, {"bf16", true}}))
      ->default_str("f32");
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
