#include "common/config/refused.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/choices.h"
#include "common/config/fields.h"
#include "common/config/leaves.h"

namespace sluice::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr Refusal kRefused[] = {
    {.path = "profile", .why = "profiles are not in this build", .instead = "use none"},
    {.path = "model.digest",
     .why = "checking a given digest is not in this build",
     .instead = "use auto"},
    {.path = "model.dtype",
     .words = "float16",
     .instead = "use bfloat16, float32, or auto, which is float32 on a CPU"},
    {.path = "model.reference",
     .but = "initial",
     .why = "a reference from a directory is not in this build",
     .instead = "use initial or none"},
    {.path = "rollout.engine.kind", .words = "sglang vllm"},
    {.path = "rollout.timeout",
     .why = "a time limit of one turn's generation is not in this build",
     .instead = "leave it out; queue.straggler.wait bounds how long a batch waits for an answer"},
    {.path = "rollout.sampling.top_p",
     .why = "training on truncated distributions is not in this build",
     .instead = "use 1.0"},
    {.path = "rollout.sampling.top_k",
     .why = "training on truncated distributions is not in this build",
     .instead = "use 0"},
    {.path = "rollout.environment",
     .why = "environments are not in this build",
     .instead = "leave the block out"},
    {.path = "reward.sandbox.network",
     .why = "a network for programs is not in this build",
     .instead = "use none"},
    {.path = "trainer.parallel.tensor",
     .why = "sharing each matrix is not in this build",
     .instead = "use 1"},
    {.path = "weights.encoding", .words = "delta", .instead = "use auto or full"},
    {.path = "weights.publish_dtype",
     .why = "another type than the model's is not in this build",
     .instead = "use auto"},
    {.path = "weights.verify",
     .why = "choosing how weights are verified is not in this build",
     .instead = "use auto"},
    {.path = "weights.allow_unverified",
     .why = "unverified engines are not in this build",
     .instead = "use false"},
    {.path = "weights.broadcast",
     .words = "nccl",
     .why = "NCCL moves the memory of GPUs, and engines on GPUs are not in this build",
     .instead = "use gloo, or none"},
#ifndef SLUICE_UCX
    {.path = "weights.ucx",
     .why = "UCX is not in this build, which found no libucx-dev",
     .instead = "use false, or build again with -DSLUICE_UCX=ON"},
#endif
    {.path = "resources.device",
     .but = "cpu",
     .why = "another device than the CPU is not in this build",
     .instead = "use auto or cpu"},
    {.path = "resources.queue",
     .why = "more than one queue shard is not in this build",
     .instead = "use 1"},
    {.path = "limits.tokens",
     .why = "a limit on tokens is not in this build",
     .instead = "use limits.max_steps or limits.wall"},
};

// Whether a row for `path` applies to the value at `rule_path`: the value itself or one inside it.
bool Covers(absl::string_view path, absl::string_view rule_path) {
  return rule_path == path || (absl::StartsWith(rule_path, path) && rule_path[path.size()] == '.');
}

// Returns the value in the form of the table's words: without quotes.
std::string WordOf(const Leaf& leaf) {
  const bool text =
      leaf.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !leaf.field->is_repeated();
  if (text && leaf.message->GetReflection()->HasField(*leaf.message, leaf.field)) {
    return leaf.message->GetReflection()->GetString(*leaf.message, leaf.field);
  }
  return LeafText(*leaf.message, *leaf.field);
}

// Returns the value that the field has in an empty job file.
std::string DefaultOf(const Leaf& leaf) {
  const std::unique_ptr<Message> plain(leaf.message->New());
  FillDefaults(plain.get());
  return WordOf({leaf.path, leaf.rule_path, plain.get(), leaf.field});
}

// For example "use rl or sft".
std::string UseOneOf(const Leaf& leaf) {
  std::vector<std::string> words = BuiltChoicesOf(*leaf.field, leaf.rule_path);
  const std::string last = words.back();
  words.pop_back();
  return words.empty() ? absl::StrCat("use ", last)
                       : absl::StrCat("use ", absl::StrJoin(words, ", "), " or ", last);
}

// Adds an error if a row of the table refuses the value.
void RefuseLeaf(const Leaf& leaf, SpecProblems* problems) {
  if (leaf.field->is_repeated() && !IsLeaf(*leaf.field) &&
      leaf.message->GetReflection()->FieldSize(*leaf.message, leaf.field) == 0)
    return;
  // An unset duration asks for nothing.
  const bool unset = IsLeaf(*leaf.field) && !leaf.field->is_repeated() &&
                     leaf.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
                     !leaf.message->GetReflection()->HasField(*leaf.message, leaf.field);
  if (unset) return;

  const std::string word = IsLeaf(*leaf.field) ? WordOf(leaf) : "";
  const Refusal* row = word.empty() ? nullptr : RefusalOf(leaf.rule_path, word);
  if (row == nullptr) {
    row = RefusalOf(leaf.rule_path, "");
    if (row == nullptr || (!word.empty() && (word == row->but || word == DefaultOf(leaf)))) return;
    // A refused block reports a list once, not again for each value inside.
    if (leaf.path != leaf.rule_path && row->path != leaf.rule_path) return;
  }

  const std::string why = row->why.empty() ? absl::StrCat("\"", word, "\" is not in this build")
                                           : std::string(row->why);
  problems->Add(13, leaf.path, ": ", why, "; ",
                row->instead.empty() ? UseOneOf(leaf) : std::string(row->instead));
}

}  // namespace

absl::Span<const Refusal> Refusals() { return kRefused; }

const Refusal* RefusalOf(absl::string_view rule_path, absl::string_view word) {
  for (const Refusal& row : kRefused) {
    if (!Covers(row.path, rule_path) || row.words.empty() != word.empty()) continue;
    if (word.empty() ||
        absl::c_linear_search(std::vector<absl::string_view>(absl::StrSplit(row.words, ' ')), word))
      return &row;
  }
  return nullptr;
}

void CheckRefused(const Message& spec, SpecProblems* problems) {
  VisitLeaves(spec, /*unset_blocks=*/false, [&](const Leaf& leaf) { RefuseLeaf(leaf, problems); });
}

}  // namespace sluice::config
