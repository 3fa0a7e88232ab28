#include "services/trainer/core/micro_batch.h"

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "services/trainer/core/packer.h"

namespace sluice::trainer {
namespace {

// A sequence with its index among those that are divided, and its group's number of sequences and
// of tokens with which all of these begin.
struct Member {
  const Sequence* sequence;
  uint32_t index;
  int64_t group_size = 1, group_shared = 0;
};
using Members = absl::Span<const Member>;

// Number of leading elements, at most `limit`, that a and b have in common.
template <typename T>
size_t CommonLength(const std::vector<T>& a, const std::vector<T>& b, size_t limit) {
  return std::mismatch(a.begin(), a.begin() + limit, b.begin()).first - a.begin();
}

// Number of leading tokens that all members have in common and that went through the same experts.
// It is 0 for a single member, which shares with no other.
int64_t CommonPrefix(Members members) {
  if (members.size() < 2) return 0;
  const Sequence& first = *members[0].sequence;
  const size_t experts = first.routing.size() / first.tokens.size();  // Entries per token.
  size_t common = first.tokens.size();
  for (const Member& member : members.subspan(1)) {
    const Sequence& other = *member.sequence;
    common = CommonLength(first.tokens, other.tokens, std::min(common, other.tokens.size()));
    if (experts > 0)
      common = CommonLength(first.routing, other.routing,
                            std::min(common * experts, other.routing.size())) /
               experts;
  }
  return static_cast<int64_t>(common);
}

// Calls visit(first, count) for each run of sequences of the same group.
template <typename Visit>
void ForEachGroup(Members sequences, Visit visit) {
  for (size_t first = 0, last = 0; first < sequences.size(); first = last) {
    const uint32_t group = sequences[first].sequence->group;
    while (last < sequences.size() && sequences[last].sequence->group == group) ++last;
    visit(first, last - first);
  }
}

// Appends tokens [first, end) of a member, which stand for those of `copies` members, and returns
// the row of the first of them.
int64_t AppendTokens(const Member& member, int64_t first, int64_t end, int64_t prefix,
                     size_t copies, MicroBatch* batch) {
  const Sequence& sequence = *member.sequence;
  PackedBatch* const packed = &batch->packed;
  const int64_t start = packed->cu_seqlens.back();
  for (int64_t t = first; t < end; ++t) {
    packed->tokens.push_back(sequence.tokens[t]);
    packed->positions.push_back(t);
    const int64_t holders = t < member.group_shared ? member.group_size : 1;
    batch->balance.token_weights.push_back(static_cast<float>(copies) /
                                           static_cast<float>(holders));
  }
  // Entries per token.
  const int64_t experts = static_cast<int64_t>(sequence.routing.size() / sequence.tokens.size());
  packed->routing.insert(packed->routing.end(), sequence.routing.begin() + first * experts,
                         sequence.routing.begin() + end * experts);
  packed->cu_seqlens.push_back(start + end - first);
  packed->prefix.push_back(prefix);
  return start;
}

void AppendGroup(Members members, MicroBatch* batch) {
  PackedBatch& packed = batch->packed;
  // `prefix` is the index of the shared part in the packed batch; a member's own part attends to
  // it.
  const int64_t shared = CommonPrefix(members), prefix = static_cast<int64_t>(packed.prefix.size());
  const int64_t shared_start =
      shared == 0 ? 0 : AppendTokens(members[0], 0, shared, -1, members.size(), batch);
  for (const Member& member : members) {
    const Sequence& from = *member.sequence;
    const int64_t length = static_cast<int64_t>(from.tokens.size());
    const int64_t own_start = length == shared ? 0
                                               : AppendTokens(member, shared, length,
                                                              shared == 0 ? -1 : prefix, 1, batch);
    for (const int32_t row : from.rows)
      packed.score_rows.push_back(row < shared ? shared_start + row : own_start + row - shared);
    absl::c_copy(from.targets, std::back_inserter(batch->targets));
    absl::c_copy(from.behavior, std::back_inserter(batch->behavior));
    absl::c_copy(from.staleness, std::back_inserter(batch->staleness));
    absl::c_copy(from.advantage, std::back_inserter(batch->advantage));
    absl::c_copy(from.value, std::back_inserter(batch->value));
    absl::c_copy(from.value_target, std::back_inserter(batch->value_target));
    batch->weight.push_back(from.weight);
    batch->sequences.push_back(member.index);
    batch->offsets.push_back(static_cast<int64_t>(batch->targets.size()));
  }
}

}  // namespace

std::vector<MicroBatch> MakeMicroBatches(absl::Span<const Sequence> sequences,
                                         uint32_t max_tokens) {
  std::vector<Member> all;
  for (const Sequence& sequence : sequences)
    all.push_back({&sequence, static_cast<uint32_t>(all.size())});
  std::vector<PackItem> items;
  ForEachGroup(all, [&](size_t first, size_t count) {
    const absl::Span<Member> members = absl::MakeSpan(all).subspan(first, count);
    const int64_t shared = CommonPrefix(members);
    for (Member& member : members) {
      member.group_size = static_cast<int64_t>(count);
      member.group_shared = shared;
      items.push_back({member.sequence->group,
                       static_cast<uint32_t>(member.sequence->tokens.size()),
                       static_cast<uint32_t>(shared)});
    }
  });

  std::vector<MicroBatch> batches;
  for (const std::vector<uint32_t>& bin : Pack(items, max_tokens)) {
    std::vector<Member> members;
    for (const uint32_t i : bin) members.push_back(all[i]);
    MicroBatch& batch =
        batches.emplace_back(MicroBatch{.packed = {.cu_seqlens = {0}}, .offsets = {0}});
    ForEachGroup(members, [&](size_t first, size_t count) {
      AppendGroup(absl::MakeConstSpan(members).subspan(first, count), &batch);
    });
  }
  return batches;
}

}  // namespace sluice::trainer
