#include "common/log/job_lines.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/base/id.h"
#include "common/base/status.h"

namespace sluice::log {
namespace {

// A random number that is not 0.
uint64_t NewRun() {
  uint64_t run = 0;
  while (run == 0) {
    const std::string random = RandomId16();
    std::memcpy(&run, random.data(), sizeof run);
  }
  return run;
}

size_t BytesOf(const JobLines::Line& line) { return sizeof line + line.json.size(); }

}  // namespace

JobLines::Job& JobLines::FindOrAdd(absl::string_view id) {
  auto found = jobs_.find(id);
  if (found == jobs_.end()) {
    if (jobs_.size() >= options_.jobs) ForgetOne();
    found = jobs_.emplace(std::string(id), Job{.run = NewRun()}).first;
  }
  found->second.touched = ++touches_;
  return found->second;
}

void JobLines::ForgetOne() {
  const auto quietest = std::min_element(
      jobs_.begin(), jobs_.end(),
      [](const auto& a, const auto& b) { return a.second.touched < b.second.touched; });
  if (quietest == jobs_.end()) return;
  std::erase_if(names_, [&](const auto& entry) {
    return entry.second.running.empty() && entry.second.last == quietest->first;
  });
  jobs_.erase(quietest);
}

void JobLines::Begin(absl::string_view id, absl::string_view name) {
  MutexLock lock(&mu_);
  FindOrAdd(id);
  for (const absl::string_view alias : {name, id}) {
    Name& known = names_[std::string(alias)];
    ++known.running[std::string(id)];
    known.last = std::string(id);
    if (name == id) return;
  }
}

void JobLines::End(absl::string_view id, absl::string_view name) {
  MutexLock lock(&mu_);
  for (const absl::string_view alias : {name, id}) {
    const auto known = names_.find(alias);
    SLUICE_CHECK(known != names_.end());
    const auto running = known->second.running.find(id);
    SLUICE_CHECK(running != known->second.running.end());
    if (--running->second == 0) known->second.running.erase(running);
    known->second.last = std::string(id);
    if (known->second.running.empty() && !jobs_.contains(known->second.last)) names_.erase(known);
    if (name == id) return;
  }
}

void JobLines::Add(absl::string_view name, Line line) {
  MutexLock lock(&mu_);
  const auto known = names_.find(name);
  if (known == names_.end() || known->second.running.size() > 1) return;
  // A copy, because FindOrAdd() may forget the name.
  const std::string id =
      known->second.running.empty() ? known->second.last : known->second.running.begin()->first;
  Append(FindOrAdd(id), std::move(line));
}

void JobLines::AddTo(absl::string_view id, Line line) {
  MutexLock lock(&mu_);
  Append(FindOrAdd(id), std::move(line));
}

void JobLines::Append(Job& job, Line line) {
  line.number = ++job.newest;
  job.bytes += BytesOf(line);
  job.lines.push_back(std::move(line));
  while (job.lines.size() > options_.lines || job.bytes > options_.bytes) {
    job.bytes -= BytesOf(job.lines.front());
    job.lines.pop_front();
    if (job.lines.empty()) return;  // The line alone is larger than the limit.
  }
}

JobLines::Answer JobLines::Read(absl::string_view id, const Query& query) const {
  MutexLock lock(&mu_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return {};
  const Job& job = found->second;
  Answer answer{.run = job.run, .newest = job.newest};

  const uint64_t after = query.run == job.run ? query.after : 0;
  const uint64_t dropped = job.newest - job.lines.size();  // Number of the last line dropped.
  if (after < dropped) answer.lost = dropped - after;
  bool left_out_older = false;  // Lines older than all that were lost would not be wanted either.
  for (auto line = job.lines.rbegin(); line != job.lines.rend() && line->number > after; ++line) {
    if (line->at < query.since) left_out_older = true;
    if (line->at < query.since || line->level < query.lowest) continue;
    if (query.tail > 0 && answer.lines.size() == query.tail) {
      left_out_older = true;
      break;
    }
    answer.lines.push_back(*line);
  }
  if (left_out_older || (query.tail > 0 && answer.lines.size() == query.tail)) answer.lost = 0;
  std::reverse(answer.lines.begin(), answer.lines.end());
  return answer;
}

JobLines& ProcessJobLines() {
  static JobLines* const lines = new JobLines;
  return *lines;
}

JobScope::JobScope(absl::string_view id, absl::string_view name) : id_(id), name_(name) {
  ProcessJobLines().Begin(id_, name_);
}

JobScope::~JobScope() { ProcessJobLines().End(id_, name_); }

}  // namespace sluice::log
