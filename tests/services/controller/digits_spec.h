#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::controller {

// A complete spec, as the CLI sends it. Its files are on another host.
inline job::v1::JobSpec Spec(const std::string& name) {
  const std::string text = absl::StrCat("name: ", name, R"(
run: {seed: 7}
model: {path: /models/tiny, max_context: 64}
data:
  train: [{name: digits, path: /data/digits.jsonl, prompt: question, answer: answer}]
  order: {max_prompt: 32}
rollout: {max_response: 7}
reward: {rewards: [{name: right, verifier: text, args: {property: reversed}}]}
queue: {groups_per_step: 32, keep: {durability: memory}}
checkpoint: {dir: /ckpt}
limits: {max_steps: 100}
)");
  const JobFile file = ParseJobFile(text, "/jobs/job.yaml", {.sets = {}, .check_paths = false});
  SLUICE_CHECK_MSG(file.problems.empty(), file.problems[0].ToString());
  return *file.spec;
}

}  // namespace sluice::controller
