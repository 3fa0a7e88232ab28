// Measures how fast answers are scored through a queue: a sluice-queue process, and workers as
// sluice-reward has them, with the verifier gsm8k on answers of 500 bytes.
//   bench_reward [--answers 16384] [--workers 2] [--rounds 3] [--json]
//
// Rows: the rate at which sealed answers get their rewards, beside that of scoring them in one
// thread without a queue; the CPU time of an answer in both processes; and the time from the call
// that seals an answer to its score, while answers come at 200 a second.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/scoring/scorer.h"
#include "services/reward/worker.h"
#include "tests/bench/queue/throughput_queue.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

using Member = QueueUnderTest::Member;

constexpr size_t kAnswerBytes = 500;
constexpr size_t kSealedAtOnce = 64;
constexpr int kPaced = 1000;
constexpr absl::Duration kPace = absl::Milliseconds(5);

struct Options {
  size_t answers = 16384;
  int workers = 2, rounds = 3;
  bool json = false;
};

// The text of answer number i; one in ten is right.
std::string AnswerText(size_t i) {
  std::string text = absl::StrCat(i, " ");
  text.resize(kAnswerBytes, 'x');
  return absl::StrCat(text, "\n#### ", i % 10);
}

std::shared_ptr<const Scorer> MakeScorer() {
  absl::StatusOr<Scorer> scorer =
      Scorer::Make({{.name = "right", .verifier = "gsm8k"}}, Combine::kSum);
  SLUICE_CHECK_MSG(scorer.ok(), scorer.status().ToString());
  return std::make_shared<const Scorer>(*std::move(scorer));
}

// When each answer was scored, by number. Thread-safe.
class Scored {
 public:
  explicit Scored(size_t answers) : at_(answers) {}
  void Add(const reward::ScoredAnswers& scored) {
    const double now = WallSeconds();
    MutexLock lock(&mu_);
    for (const Answer& answer : scored.answers) {
      size_t number = 0;
      SLUICE_CHECK(absl::SimpleAtoi(answer.text.substr(0, answer.text.find(' ')), &number));
      SLUICE_CHECK_MSG(at_[number] == 0, absl::StrCat("answer ", number, " was scored twice"));
      at_[number] = now;
      ++count_;
    }
    changed_.NotifyAll();
  }
  // Waits until all are scored. Returns when each was.
  std::vector<double> Await() {
    MutexLock lock(&mu_);
    while (count_ < at_.size()) changed_.Wait(&mu_);
    return at_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<double> at_ ABSL_GUARDED_BY(mu_);
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        queue_({.groups = static_cast<uint32_t>(options.answers / QueueUnderTest::kMembers),
                .member_bytes = 8192,
                .scorers = options.workers}) {}

  // Seals all answers, and then lets the workers score them. Returns the seconds that they take,
  // and sets the CPU seconds of both processes.
  double ScoreSealed(double* cpu) {
    const std::vector<Member> members = queue_.Admit(options_.answers);
    PutAnswers(members);
    for (size_t from = 0; from < members.size(); from += kSealedAtOnce)
      Seal(members, from, std::min(members.size(), from + kSealedAtOnce));

    Scored scored(members.size());
    const double used = OwnCpuSeconds() + CpuSeconds(queue_.pid()), start = WallSeconds();
    StartWorkers(&scored);
    queue_.AwaitBatch();
    const double seconds = WallSeconds() - start;
    workers_.clear();
    *cpu = OwnCpuSeconds() + CpuSeconds(queue_.pid()) - used;
    return seconds;
  }

  // Seals one answer after the other while the workers wait for them. Returns the seconds from each
  // seal to the score.
  std::vector<double> ScorePaced() {
    const std::vector<Member> members = queue_.Admit(kPaced);
    PutAnswers(members);
    Scored scored(members.size());
    StartWorkers(&scored);
    std::vector<double> sealed;
    for (size_t i = 0; i < members.size(); ++i) {
      Clock::Real()->Sleep(kPace);
      sealed.push_back(WallSeconds());
      Seal(members, i, i + 1);
    }
    std::vector<double> taken = scored.Await();
    queue_.AwaitBatch();
    workers_.clear();
    for (size_t i = 0; i < taken.size(); ++i) taken[i] -= sealed[i];
    return taken;
  }

 private:
  void StartWorkers(Scored* scored) {
    for (int i = 1; i <= options_.workers; ++i) {
      workers_.push_back(std::make_unique<reward::Worker>(
          reward::Worker::Options{
              .job = kBenchJob,
              .job_name = "bench",
              .worker = absl::StrCat("w", i),
              .incarnation = 1,
              .on_scored = [scored](std::shared_ptr<const Scorer>,
                                    reward::ScoredAnswers answers) { scored->Add(answers); }},
          queue_.channel(), MakeScorer(), reward::Metrics(),
          [](absl::Status why) { SLUICE_CHECK_MSG(absl::IsCancelled(why), why.ToString()); }));
    }
  }

  // Puts prompts, a token of each answer, and its text.
  void PutAnswers(const std::vector<Member>& members) {
    queue_.PutPrompts(members);
    PutStream stream(queue_.client());
    const auto put = [&](common::v1::Record record, std::string payload) {
      const absl::Status status =
          stream.Put(std::move(record), std::move(payload), [](const PutOutcome& outcome) {
            SLUICE_CHECK_MSG(outcome.status.ok(), outcome.status.ToString());
          });
      SLUICE_CHECK_MSG(status.ok(), status.ToString());
    };
    for (size_t i = 0; i < members.size(); ++i) {
      common::v1::Record record;
      std::string payload;
      *record.mutable_owner() = members[i].ref;
      record.set_lease(members[i].lease);
      common::v1::Piece& piece = *record.mutable_piece();
      piece.set_at(1);
      piece.set_segment(1);
      piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
      piece.set_trainable(true);
      piece.set_count(1);
      piece.add_runs()->mutable_version()->set_incarnation(1);
      piece.mutable_runs(0)->set_count(1);
      AddField("tokens", common::v1::DTYPE_I32, {1}, kToken, &record, &payload);
      AddField("logprobs", common::v1::DTYPE_F32, {1}, kLogprob, &record, &payload);
      put(record, payload);

      record.clear_piece();
      record.clear_fields();
      payload.clear();
      const std::string messages =
          nlohmann::json::array({{{"role", "assistant"}, {"content", AnswerText(i)}}}).dump();
      AddField("messages", common::v1::DTYPE_U8, {static_cast<int64_t>(messages.size())}, messages,
               &record, &payload);
      put(record, payload);
    }
    SLUICE_CHECK(stream.Flush().ok());
  }

  void Seal(const std::vector<Member>& members, size_t from, size_t end) {
    queue::v1::SealRequest seal;
    for (size_t i = from; i < end; ++i) {
      queue::v1::SealItem& item = *seal.add_items();
      *item.mutable_ref() = members[i].ref;
      item.set_lease(members[i].lease);
      item.set_tokens(2);
      item.set_crc32c(Crc32c(absl::StrCat(kToken, kLogprob)));
      item.set_finish(common::v1::FINISH_STOP);
      item.set_turns(1);
    }
    const absl::StatusOr<queue::v1::SealResponse> sealed = queue_.client()->Seal(seal);
    SLUICE_CHECK_MSG(sealed.ok(), sealed.status().ToString());
    for (const auto& item : sealed->items()) SLUICE_CHECK_MSG(item.code() == 0, item.reason());
  }

  static constexpr absl::string_view kToken = absl::string_view("\1\0\0\0", 4);
  static constexpr absl::string_view kLogprob = absl::string_view("\0\0\0\xbf", 4);  // -0.5

  const Options options_;
  QueueUnderTest queue_;
  std::vector<std::unique_ptr<reward::Worker>> workers_;
};

// The seconds of scoring the answers in this thread.
double ScoreAlone(size_t answers) {
  const std::shared_ptr<const Scorer> scorer = MakeScorer();
  const nlohmann::json row = {{"prompt", "0"}, {"answer", "7"}};
  std::vector<std::string> texts;
  for (size_t i = 0; i < answers; ++i) texts.push_back(AnswerText(i));
  const double start = WallSeconds();
  for (const std::string& text : texts)
    SLUICE_CHECK(scorer->Run({.text = text}, row, "rows").status == "ok");
  return WallSeconds() - start;
}

void Run(const Options& options) {
  const Report report(options.json);
  std::vector<double> rates, alone, cpu, p50, p99;
  for (int round = 0; round < options.rounds; ++round) {
    const auto count = static_cast<double>(options.answers);
    double used = 0;
    {
      Bench bench(options);
      rates.push_back(count / bench.ScoreSealed(&used));
    }
    cpu.push_back(1e6 * used / count);
    alone.push_back(count / ScoreAlone(options.answers));
    Bench bench({.answers = kPaced, .workers = options.workers});
    const std::vector<double> taken = bench.ScorePaced();
    p50.push_back(1e3 * Quantile(taken, 0.5));
    p99.push_back(1e3 * Quantile(taken, 0.99));
  }
  report.Add({"reward_rate", Median(rates), "answers/s", Median(alone), options.rounds});
  report.Add({"reward_cpu", Median(cpu), "us/answer", 1e6 / Median(alone), options.rounds});
  report.Add({"seal_to_score_p50", Median(p50), "ms", 0, options.rounds});
  report.Add({"seal_to_score_p99", Median(p99), "ms", 0, options.rounds});
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  Options options;
  CLI::App app("Measures how fast answers are scored through a queue.");
  app.add_flag("--json", options.json, "print one JSON object per line");
  app.add_option("--answers", options.answers, "answers of a round, a multiple of 8")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app.add_option("--workers", options.workers, "workers that score, each in a thread of its own")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "how often it is measured; the median is printed")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  Run(options);
  return 0;
}
