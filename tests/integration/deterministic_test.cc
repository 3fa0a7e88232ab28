// `run.deterministic`: the trainer computes each log-prob in the same bits as the engine that drew
// the token, and the same job gives the same weights, however many workers sample it and however
// many threads compute in each daemon.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "common/testing/data.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/metrics_page.h"

namespace sluice::integration {
namespace {

constexpr int kDeterministicSteps = 12;

struct Outcome {
  std::string weights;  // The last checkpoint's file.
  std::string hash;     // Of all that was trained on, in order.
  std::vector<job::v1::StepReport> reports;
  std::map<std::string, double> bytes;  // Of versions that came, by transport.
};

// Runs the example deterministically, to its end. CLUSTER in `sets` is the cluster's folder.
void RunDigits(int rollouts, Outcome* outcome, std::vector<std::string> sets = {},
               int threads = 1) {
  Cluster cluster({.rollouts = rollouts, .threads = threads});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());

  for (std::string& set : sets) set = absl::StrReplaceAll(set, {{"CLUSTER", cluster.dir()}});
  sets.insert(sets.end(), {"run.deterministic=true", "queue.max_staleness=0",
                           absl::StrCat("resources.rollout.min=", rollouts),
                           absl::StrCat("resources.rollout.max=", rollouts)});
  const auto job = SubmitDigits(&cluster, kDeterministicSteps, sets);
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(2));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());

  for (int i = 0; i < rollouts; ++i) {
    const MetricsPage page = ReadMetrics(cluster.ops(absl::StrCat("rollout-", i)));
    for (const char* transport : {"grpc", "shm", "file", "c10d", "ucx"})
      outcome->bytes[transport] +=
          SumOf(page, "sluice_weights_transport_bytes_total", "transport", transport);
  }
  outcome->reports = (*job)->reports();
  outcome->hash = end->result().ledger().hash();
  const auto weights = ReadFile(end->result().checkpoint() + "/model.safetensors");
  ASSERT_EQ(weights.status(), absl::OkStatus());
  outcome->weights = *weights;
}

// The trainer's log-probs have the bits of the engine's, and every step has a gradient.
void ExpectNoGap(const Outcome& outcome) {
  ASSERT_EQ(outcome.reports.size(), static_cast<size_t>(kDeterministicSteps));
  for (const job::v1::StepReport& report : outcome.reports) {
    ASSERT_EQ(report.values().count("absdiff_max"), 1U) << report.DebugString();
    EXPECT_EQ(report.values().at("absdiff_mean"), 0) << "step " << report.k();
    EXPECT_EQ(report.values().at("absdiff_max"), 0) << "step " << report.k();
    EXPECT_GT(report.values().at("grad_norm"), 0) << "step " << report.k();
  }
}

TEST(DeterministicTest,
     TheTrainerFindsEachLogprobInTheEnginesBitsAndTheSameJobGivesTheSameWeights) {
  Outcome one, two;
  ASSERT_NO_FATAL_FAILURE(RunDigits(/*rollouts=*/1, &one));
  ASSERT_NO_FATAL_FAILURE(RunDigits(/*rollouts=*/2, &two, {}, /*threads=*/3));
  for (const Outcome* outcome : {&one, &two}) ASSERT_NO_FATAL_FAILURE(ExpectNoGap(*outcome));
  EXPECT_EQ(one.hash, two.hash) << "other tokens or log-probs were trained on";
  EXPECT_EQ(one.weights, two.weights);
}

// Which answers a second wave adds depends on rewards alone, and not on when they come.
TEST(DeterministicTest, AJobWithWavesGivesTheSameWeightsHoweverManyWorkersSampleIt) {
  const std::vector<std::string> waves = {"rollout.group.size=6", "rollout.group.min=2",
                                          "rollout.group.first_wave=2"};
  Outcome one, two;
  ASSERT_NO_FATAL_FAILURE(RunDigits(/*rollouts=*/1, &one, waves));
  ASSERT_NO_FATAL_FAILURE(RunDigits(/*rollouts=*/2, &two, waves, /*threads=*/3));
  EXPECT_EQ(one.hash, two.hash);
  EXPECT_EQ(one.weights, two.weights);
}

TEST(DeterministicTest, TheSameJobGivesTheSameWeightsWhateverTransportBringsThem) {
  std::map<std::string, std::vector<std::string>> transports = {
      {"grpc", {"weights.shared_memory=false"}},
      {"shm", {}},
      {"file", {"weights.shared_memory=false", "weights.dir=CLUSTER/weights"}},
      {"c10d", {"weights.shared_memory=false", "weights.broadcast=gloo", "weights.encoding=full"}}};
#ifdef SLUICE_UCX
  transports["ucx"] = {"weights.shared_memory=false", "weights.ucx=true"};
#endif
  std::map<std::string, Outcome> outcomes;
  for (const auto& [transport, sets] : transports) {
    SCOPED_TRACE(transport);
    ASSERT_NO_FATAL_FAILURE(RunDigits(/*rollouts=*/2, &outcomes[transport], sets));
    for (const auto& [other, bytes] : outcomes[transport].bytes) {
      // Calls also bring what another transport does not give in time, on a slow machine.
      if (other != transport && other == "grpc") continue;
      EXPECT_EQ(bytes > 0, other == transport) << other << ": " << bytes;
    }
  }
  for (const auto& [transport, outcome] : outcomes) {
    EXPECT_EQ(outcome.hash, outcomes["grpc"].hash) << transport;
    EXPECT_EQ(outcome.weights, outcomes["grpc"].weights) << transport;
  }
}

TEST(DeterministicTest, TheTrainerFindsEachLogprobInTheEnginesBitsInBf16) {
  Outcome outcome;
  ASSERT_NO_FATAL_FAILURE(RunDigits(/*rollouts=*/1, &outcome, {"model.dtype=bfloat16"}));
  ExpectNoGap(outcome);
}

// The digits model with eight small experts in each layer, in a directory of its own.
std::string ExpertsModel() {
  const std::string from = SLUICE_SOURCE_DIR "/configs/examples/digits/",
                    dir = testing_data::TempPath("digits-experts");
  EXPECT_EQ(MakeDirs(dir), absl::OkStatus());
  for (const std::string name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(WriteFileAtomic(dir + "/" + name, *ReadFile(from + name)), absl::OkStatus());
  }

  const std::string config = absl::StrReplaceAll(
      *ReadFile(from + "config.json"),
      {{"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"},
       {"\"qwen3\"", "\"qwen3_moe\""},
       {"\"intermediate_size\": 192",
        "\"intermediate_size\": 192, \"num_experts\": 8, \"num_experts_per_tok\": 2, "
        "\"moe_intermediate_size\": 48, \"norm_topk_prob\": true"}});
  EXPECT_EQ(WriteFileAtomic(dir + "/config.json", config), absl::OkStatus());
  return dir;
}

TEST(DeterministicTest, TheTrainerIsToldTheExpertsOfAMixtureAndFindsEachLogprobInTheEnginesBits) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    Outcome outcome;
    ASSERT_NO_FATAL_FAILURE(RunDigits(
        /*rollouts=*/1, &outcome,
        {absl::StrCat("model.init.config=", ExpertsModel()), absl::StrCat("model.dtype=", dtype)}));

    ExpectNoGap(outcome);
    for (const job::v1::StepReport& report : outcome.reports)
      EXPECT_EQ(report.values().at("experts_recorded"), 1) << "step " << report.k();
  }
}

}  // namespace
}  // namespace sluice::integration
