#include "tools/sluice/progress.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/curve.h"
#include "tools/sluice/terminal.h"

namespace sluice::cli {
namespace {

constexpr int kSparklinePoints = 40;
constexpr int kMedianSteps = 20;

// Returns the lowest staleness such that a share `q` of the tokens is at or below it.
int64_t Quantile(const std::map<int64_t, int64_t>& counts, int64_t total, double q) {
  int64_t seen = 0;
  for (const auto& [staleness, count] : counts) {
    seen += count;
    if (static_cast<double>(seen) >= q * static_cast<double>(total)) return staleness;
  }
  return 0;
}

std::optional<double> ValueOf(const job::v1::StepReport& step, const char* name) {
  const auto at = step.values().find(name);
  return at == step.values().end() ? std::nullopt : std::optional(at->second);
}

}  // namespace

std::string ShortDuration(double seconds) {
  const int64_t s = std::llround(std::max(0.0, seconds));
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  return absl::StrFormat("%dh%02dm", s / 3600, s % 3600 / 60);
}

std::string ShortCount(double count) {
  if (count < 1000) return absl::StrFormat("%.0f", count);
  if (count < 1e6) return absl::StrFormat("%.1fk", count / 1e3);
  return absl::StrFormat("%.1fM", count / 1e6);
}

std::string ShortBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

void Progress::SetSpec(const job::v1::JobSpec& spec) {
  if (spec.limits().has_max_steps()) max_steps_ = spec.limits().max_steps();
  if (spec.limits().has_wall()) wall_seconds_ = static_cast<double>(spec.limits().wall().seconds());
  max_staleness_ = spec.queue().max_staleness();
  supervised_ = spec.kind() == "sft" || spec.kind() == "dpo";
  if (supervised_) score_ = {"loss", "loss", true};
  else if (spec.model().has_teacher() && spec.reward().rewards().empty())
    score_ = {"teacher_kl", "teacher kl", true};
}

void Progress::Add(const job::v1::StepReport& report) {
  // Steps come again where a trainer group goes back to a checkpoint, or reports came late.
  std::erase_if(steps_, [&](const Step& step) { return step.k >= report.k(); });
  Step step;
  step.k = report.k();
  done_ = report.k() + 1;
  step.at = static_cast<double>(report.at().seconds()) + report.at().nanos() * 1e-9;
  step.score = ValueOf(report, score_.key).value_or(0);
  step.entropy = ValueOf(report, "entropy");
  step.kl = ValueOf(report, "kl");
  step.reward_std = ValueOf(report, "reward_std");
  step.flat_share = ValueOf(report, "flat_share");
  std::map<int64_t, int64_t> counts;
  // The report has the number of tokens per staleness.
  for (const auto& [text, count] : report.staleness()) {
    int64_t staleness = 0;
    if (!absl::SimpleAtoi(text, &staleness)) continue;
    counts[staleness] += count;
    step.tokens += count;
  }
  if (counts.empty()) step.tokens = static_cast<int64_t>(ValueOf(report, "tokens").value_or(0));
  step.p50 = Quantile(counts, step.tokens, 0.5);
  step.p99 = Quantile(counts, step.tokens, 0.99);
  if (!counts.empty()) step.max = counts.rbegin()->first;
  steps_.push_back(step);
}

std::string Progress::StepCountText() const {
  return max_steps_ ? absl::StrCat(steps(), "/", *max_steps_) : absl::StrCat(steps());
}

std::optional<double> Progress::SecondsLeft() const {
  // Two limits may end the job: the time and the number of steps. The earlier one counts.
  std::optional<double> left;
  if (wall_seconds_ && !steps_.empty())
    left = *wall_seconds_ - (steps_.back().at - steps_.front().at);
  if (!max_steps_ || steps_.size() < 2) return left;
  std::vector<double> durations;
  for (size_t i =
           std::max<size_t>(1, steps_.size() > kMedianSteps ? steps_.size() - kMedianSteps : 1);
       i < steps_.size(); ++i) {
    durations.push_back(steps_[i].at - steps_[i - 1].at);
  }

  // The median is not changed by a single slow step, such as one with a checkpoint.
  std::nth_element(durations.begin(), durations.begin() + durations.size() / 2, durations.end());
  const double by_steps = durations[durations.size() / 2] *
                          static_cast<double>(std::max<int64_t>(0, *max_steps_ - steps()));
  return left ? std::min(*left, by_steps) : by_steps;
}

std::string Progress::StepLine() const {
  std::string line = absl::StrCat("step ", StepCountText());
  if (max_steps_ && *max_steps_ > 0) {
    const double share =
        std::min(1.0, static_cast<double>(steps()) / static_cast<double>(*max_steps_));
    const int filled = static_cast<int>(share * 30);
    absl::StrAppend(&line, " [", std::string(filled, '#'), std::string(30 - filled, '.'), "] ",
                    std::lround(share * 100), " %");
  }

  if (const auto left = SecondsLeft()) absl::StrAppend(&line, "  ends in ", ShortDuration(*left));
  if (!steps_.empty() && !supervised_) {
    absl::StrAppend(&line, "   staleness p50 ", steps_.back().p50, " p99 ", steps_.back().p99,
                    " (bound ", max_staleness_, ")");
  }
  return line;
}

std::string Progress::SpreadText(const Step& step) {
  std::string text;
  if (step.reward_std) absl::StrAppend(&text, absl::StrFormat("  std %.2f", *step.reward_std));
  if (step.flat_share)
    absl::StrAppend(&text, absl::StrFormat("  no spread %.0f %%", *step.flat_share * 100));
  return text;
}

std::string Progress::RewardLine() const {
  if (steps_.empty()) return "no step yet";
  std::vector<double> scores;
  for (const Step& step : steps_) scores.push_back(step.score);
  const Step& last = steps_.back();
  const std::vector<double> means = MeansOfStretches(scores, kSparklinePoints);
  std::string line = absl::StrFormat("%s %.2f -> %.2f %s", score_.name, scores.front(),
                                     scores.back(), Sparkline(means, utf8_));
  // Show the best value once the run is past it, so that a collapse can be seen.
  const auto best = score_.falls ? std::min_element(means.begin(), means.end())
                                 : std::max_element(means.begin(), means.end());
  if (*best != means.back()) absl::StrAppend(&line, absl::StrFormat("  best %.2f", *best));
  absl::StrAppend(&line, SpreadText(last));
  if (last.kl) absl::StrAppend(&line, absl::StrFormat("  kl %.3f", *last.kl));
  if (last.entropy) absl::StrAppend(&line, absl::StrFormat("  entropy %.2f", *last.entropy));

  const size_t from = steps_.size() > kMedianSteps ? steps_.size() - kMedianSteps : 0;
  const double seconds = last.at - steps_[from].at;
  if (seconds > 0) {
    double trained = 0;
    for (size_t i = from + 1; i < steps_.size(); ++i)
      trained += static_cast<double>(steps_[i].tokens);
    absl::StrAppend(&line, "   tok/s trained ", ShortCount(trained / seconds));
  }
  return line;
}

std::string Progress::LogLine() const {
  std::string line = absl::StrCat("step ", StepCountText());
  if (steps_.empty()) return line;
  const Step& last = steps_.back();
  absl::StrAppend(&line, absl::StrFormat("  %s %.3f", score_.name, last.score));
  absl::StrAppend(&line, SpreadText(last));
  if (last.entropy) absl::StrAppend(&line, absl::StrFormat("  entropy %.2f", *last.entropy));
  if (!supervised_) absl::StrAppend(&line, "  staleness max ", last.max);
  if (const auto left = SecondsLeft()) absl::StrAppend(&line, "  ends in ", ShortDuration(*left));
  return line;
}

ProgressPrinter::ProgressPrinter(std::FILE* out, bool quiet)
    : out_(out), quiet_(quiet), terminal_(IsTerminal(out)), progress_(Utf8Terminal()) {}

ProgressPrinter::~ProgressPrinter() { Finish(); }

void ProgressPrinter::SetSpec(const job::v1::JobSpec& spec) {
  MutexLock lock(&mu_);
  progress_.SetSpec(spec);
}

void ProgressPrinter::Add(const job::v1::StepReport& step) {
  MutexLock lock(&mu_);
  progress_.Add(step);
  Show(terminal_ ? absl::Milliseconds(200) : absl::Seconds(1));
}

void ProgressPrinter::Note(const std::string& text) {
  MutexLock lock(&mu_);
  Erase();
  std::fprintf(out_, "%s\n", text.c_str());
  std::fflush(out_);
  if (terminal_) shown_steps_ = 0;  // The progress lines were erased and must be drawn again.
}

void ProgressPrinter::Finish() {
  MutexLock lock(&mu_);
  if (!finished_ && progress_.steps() > 0 && shown_steps_ != progress_.steps())
    Show(absl::ZeroDuration());
  finished_ = true;
  drawn_ = false;
}

void ProgressPrinter::Erase() {
  if (drawn_) std::fputs("\r\033[2A\033[J", out_);
  drawn_ = false;
}

void ProgressPrinter::Show(absl::Duration pause) {
  if (quiet_ || absl::Now() - shown_at_ < pause) return;
  shown_at_ = absl::Now();
  shown_steps_ = progress_.steps();
  if (!terminal_) {
    std::fprintf(out_, "%s\n", progress_.LogLine().c_str());
  } else {
    Erase();
    const int columns = TerminalColumns(out_) - 1;
    std::fprintf(out_, "%s\n%s\n", CutToColumns(progress_.StepLine(), columns).c_str(),
                 CutToColumns(progress_.RewardLine(), columns).c_str());
    drawn_ = true;
  }
  std::fflush(out_);
}

}  // namespace sluice::cli
