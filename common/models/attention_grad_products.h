#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

namespace sluice::train_ops {

// In how many ranges the `queries` of a long sequence are divided for each KV head, of which each
// has `group` query heads, so that more threads than it has KV heads can work on it. A range of a
// backward pass has the keys and values in memory seven times.
inline constexpr int64_t AttentionRanges(int64_t queries, int64_t group) {
  constexpr int64_t kLeast = 1024;  // Queries of a range.
  return std::max<int64_t>(1, std::min(queries / kLeast, group));
}

// Rows of queries of one KV head, which attend to the keys [begin, end) of their sequence. `begin`
// is a multiple of AttentionGradProducts::kKeys.
struct AttentionTile {
  const float *q, *dout;  // [rows, D], the queries divided by sqrt(D).
  int64_t rows, begin, end;
  int64_t width() const { return end - begin; }
};

// The five products of the gradient of attention, for the keys and values of one KV head of one
// sequence after the other. One thread uses it.
class AttentionGradProducts {
 public:
  static constexpr int64_t kKeys = 128;  // Keys that dq is summed over at once.

  virtual ~AttentionGradProducts() = default;

  // Makes room for the keys of a sequence of up to `longest` tokens, and forgets all others.
  virtual void Reserve(int64_t longest) = 0;
  // Takes `length` keys and values, rows of D numbers that are `ld` numbers apart, behind the first
  // `before` ones, which are kept. What was there is forgotten. The sums of the new ones are 0.
  virtual void Load(const float* keys, const float* values, int64_t ld, int64_t length,
                    int64_t before) = 0;
  // s [rows, width] = q keys^T, and dp [rows, width] = dout values^T.
  virtual void Scores(const AttentionTile& tile, float* s, float* dp) = 0;
  // dq [rows, D] = ds keys. Adds ds^T q to the sums of the keys and p^T dout to those of the
  // values. p and ds [rows, width] are 0 where a row does not attend.
  virtual void Grads(const AttentionTile& tile, const float* p, const float* ds, float* dq) = 0;
  // Writes the sums of the keys and values [first, first + length) to rows of D numbers that are
  // `ld` numbers apart.
  virtual void CopySums(int64_t first, int64_t length, int64_t ld, float* dk, float* dv) const = 0;
};

// Products in fp32 of keys with `d` numbers.
std::unique_ptr<AttentionGradProducts> MakeF32Products(int64_t d);
// The scores in fp32, and the other products with inputs in bf16 and sums in fp32.
std::unique_ptr<AttentionGradProducts> MakeBf16Products(int64_t d);

}  // namespace sluice::train_ops
