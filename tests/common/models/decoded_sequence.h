#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "common/models/adapter.h"
#include "common/models/decode_model.h"

namespace sluice {

// A sequence that is decoded, and what the decoder gave for each of its tokens.
struct DecodedSequence {
  std::vector<int32_t> tokens, blocks;
  size_t prompt = 0;  // Tokens of the prompt; used by tests that compute it in chunks.
  const Adapter* adapter = nullptr;

  size_t done = 0;                // Tokens that are computed.
  std::vector<float> logits;      // [tokens, V]
  std::vector<uint16_t> routing;  // [tokens, layers, k]
};

// The row that computes token `position` of sequence `of`, with its logits. Table i is sequence i.
inline DecodeModel::Row NextRow(const std::vector<DecodedSequence>& sequences, size_t of,
                                size_t position) {
  const DecodedSequence& s = sequences[of];
  return {static_cast<int32_t>(of), static_cast<int32_t>(position), s.tokens[position], true,
          s.adapter};
}

// Makes one step of `rows`, and stores what it gave. Table i is sequence i.
inline void Step(DecodeModel* model, const std::vector<DecodeModel::Row>& rows,
                 std::vector<DecodedSequence>* sequences) {
  const size_t vocab = static_cast<size_t>(model->config().vocab_size),
               experts = static_cast<size_t>(model->config().num_layers *
                                             model->config().experts_per_token);
  std::vector<absl::Span<const int32_t>> tables;
  for (const DecodedSequence& s : *sequences) tables.push_back(s.blocks);

  std::vector<float> logits(rows.size() * vocab);
  model->Step(rows, tables, logits.data());
  for (size_t i = 0, at = 0; i < rows.size(); ++i) {
    DecodedSequence& s = (*sequences)[static_cast<size_t>(rows[i].table)];
    s.done = static_cast<size_t>(rows[i].position) + 1;
    if (!rows[i].want_logits) continue;
    std::copy_n(&logits[at * vocab], vocab, &s.logits[(s.done - 1) * vocab]);
    std::copy_n(model->routing().begin() + static_cast<ptrdiff_t>(at * experts), experts,
                s.routing.begin() + static_cast<ptrdiff_t>((s.done - 1) * experts));
    ++at;
  }
}

inline void ExpectSameBits(const std::vector<DecodedSequence>& got,
                           const std::vector<DecodedSequence>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(std::memcmp(got[i].logits.data(), wanted[i].logits.data(),
                          wanted[i].logits.size() * sizeof(float)),
              0)
        << "sequence " << i;
    ASSERT_EQ(got[i].routing, wanted[i].routing) << "sequence " << i;
  }
}

}  // namespace sluice
