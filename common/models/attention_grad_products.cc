#include "common/models/attention_grad_products.h"

#include <algorithm>
#include <vector>

#include "kernels/decoder/op.h"

namespace sluice::train_ops {
namespace {

// The keys and values in the order in which they came, and the keys packed for the scores.
class LoadedKeys {
 public:
  explicit LoadedKeys(int64_t d) : d_(d) {}

  void Reserve(int64_t longest) {
    keys_.resize(longest * d_), values_.resize(longest * d_);
    packed_keys_.assign(PackedFloats(longest, d_), 0.0f);
  }
  void Load(const float* keys, const float* values, int64_t ld, int64_t length, int64_t before) {
    for (int64_t t = 0; t < length; ++t) {
      std::copy_n(keys + t * ld, d_, &keys_[(before + t) * d_]);
      std::copy_n(values + t * ld, d_, &values_[(before + t) * d_]);
    }
    PackRows(key(before), length, d_, before, packed_keys_.data());
    total_ = before + length;
  }
  // s [rows, width] = q keys^T.
  void Scores(const AttentionTile& tile, float* s) const {
    BestDecoderOps().gemm(tile.q, d_, &packed_keys_[tile.begin * d_], tile.rows, tile.width(), d_,
                          s, tile.width(), false);
  }

  int64_t total() const { return total_; }
  const float* key(int64_t at) const { return &keys_[at * d_]; }
  const float* value(int64_t at) const { return &values_[at * d_]; }

 private:
  const int64_t d_;
  int64_t total_ = 0;
  std::vector<float> keys_, values_, packed_keys_;
};

// The transposed keys, packed in parts of kKeys for ds keys. T: float, or uint16_t for bf16.
template <typename T>
class KeyColumns {
 public:
  static constexpr int64_t kKeys = AttentionGradProducts::kKeys;
  static_assert(kKeys % 2 == 0);
  explicit KeyColumns(int64_t d) : d_(d) {}

  void Reserve(int64_t longest) {
    columns_.resize(RoundUpToLanes(d_) * RoundUpToPairs(longest));
    edge_.resize(RoundUpToLanes(d_) * kKeys);
  }
  // Packs the parts that have keys from `before` on.
  void Load(const LoadedKeys& keys, int64_t before) {
    for (int64_t c = before / kKeys * kKeys; c < keys.total(); c += kKeys)
      Pack(keys, c, std::min(kKeys, keys.total() - c), &columns_[c * RoundUpToLanes(d_)]);
  }
  // Calls multiply(c, count, columns, add) for the parts [c, c + count) of [begin, end).
  template <typename Multiply>
  void ForEachPart(const LoadedKeys& keys, int64_t begin, int64_t end, const Multiply& multiply) {
    for (int64_t c = begin; c < end; c += kKeys) {
      // A packed part has as many keys as there are in the sequence, and the kernel needs exactly
      // those that are multiplied.
      const int64_t packed = std::min(kKeys, keys.total() - c), count = std::min(kKeys, end - c);
      const T* columns = &columns_[c * RoundUpToLanes(d_)];
      if (count < packed) {
        Pack(keys, c, count, edge_.data());
        columns = edge_.data();
      }
      multiply(c, count, columns, c > begin);
    }
  }

 private:
  void Pack(const LoadedKeys& keys, int64_t first, int64_t count, T* to) const {
    PackColumns(keys.key(first), d_, count, d_, to);
  }

  const int64_t d_;
  std::vector<T> columns_, edge_;
};

class F32Products : public AttentionGradProducts {
 public:
  explicit F32Products(int64_t d) : d_(d), keys_(d), columns_(d) {}

  void Reserve(int64_t longest) override {
    keys_.Reserve(longest), columns_.Reserve(longest);
    packed_values_.assign(PackedFloats(longest, d_), 0.0f);
    dkeys_.resize(longest * d_), dvalues_.resize(longest * d_);
  }

  void Load(const float* keys, const float* values, int64_t ld, int64_t length,
            int64_t before) override {
    keys_.Load(keys, values, ld, length, before);
    columns_.Load(keys_, before);
    PackRows(keys_.value(before), length, d_, before, packed_values_.data());
    std::fill_n(&dkeys_[before * d_], length * d_, 0.0f);
    std::fill_n(&dvalues_[before * d_], length * d_, 0.0f);
  }

  void Scores(const AttentionTile& tile, float* s, float* dp) override {
    keys_.Scores(tile, s);
    BestDecoderOps().gemm(tile.dout, d_, &packed_values_[tile.begin * d_], tile.rows, tile.width(),
                          d_, dp, tile.width(), false);
  }

  void Grads(const AttentionTile& tile, const float* p, const float* ds, float* dq) override {
    const DecoderOps& ops = BestDecoderOps();
    const int64_t rows = tile.rows, width = tile.width();
    q_columns_.resize(RoundUpToLanes(d_) * rows), dout_columns_.resize(q_columns_.size());
    PackColumns(tile.q, d_, rows, d_, q_columns_.data());
    PackColumns(tile.dout, d_, rows, d_, dout_columns_.data());
    ops.gemm_transposed(ds, width, q_columns_.data(), width, d_, rows, &dkeys_[tile.begin * d_], d_,
                        true);
    ops.gemm_transposed(p, width, dout_columns_.data(), width, d_, rows, &dvalues_[tile.begin * d_],
                        d_, true);
    columns_.ForEachPart(
        keys_, tile.begin, tile.end, [&](int64_t c, int64_t count, const float* columns, bool add) {
          ops.gemm(ds + (c - tile.begin), width, columns, rows, d_, count, dq, d_, add);
        });
  }

  void CopySums(int64_t first, int64_t length, int64_t ld, float* dk, float* dv) const override {
    for (int64_t t = 0; t < length; ++t) {
      std::copy_n(&dkeys_[(first + t) * d_], d_, dk + t * ld);
      std::copy_n(&dvalues_[(first + t) * d_], d_, dv + t * ld);
    }
  }

 private:
  const int64_t d_;
  LoadedKeys keys_;
  KeyColumns<float> columns_;
  std::vector<float> packed_values_, dkeys_, dvalues_;  // The sums are [keys, D].
  std::vector<float> q_columns_, dout_columns_;         // Of a tile.
};

class Bf16Products : public AttentionGradProducts {
 public:
  explicit Bf16Products(int64_t d) : d_(d), ld_(RoundUpToPairs(d)), keys_(d), columns_(d) {}

  void Reserve(int64_t longest) override {
    keys_.Reserve(longest), columns_.Reserve(longest);
    packed_values_.assign(PackedBf16s(longest, d_), 0);
    stride_ = longest;
    dkeys_.resize(d_ * longest), dvalues_.resize(d_ * longest);
  }

  void Load(const float* keys, const float* values, int64_t ld, int64_t length,
            int64_t before) override {
    keys_.Load(keys, values, ld, length, before);
    columns_.Load(keys_, before);
    narrow_.resize(length * d_);
    BestDecoderOps().to_bf16(keys_.value(before), length * d_, narrow_.data());
    PackRows(narrow_.data(), length, d_, before, packed_values_.data());
    for (int64_t i = 0; i < d_; ++i) {
      std::fill_n(&dkeys_[i * stride_ + before], length, 0.0f);
      std::fill_n(&dvalues_[i * stride_ + before], length, 0.0f);
    }
  }

  void Scores(const AttentionTile& tile, float* s, float* dp) override {
    keys_.Scores(tile, s);
    const uint16_t* const dout = Rounded(tile.dout, tile.rows, d_);
    BestDecoderOps().gemm_bf16(dout, ld_, &packed_values_[tile.begin * ld_], tile.rows,
                               tile.width(), d_, dp, tile.width(), false);
  }

  void Grads(const AttentionTile& tile, const float* p, const float* ds, float* dq) override {
    AddProduct(tile, tile.q, ds, dkeys_);
    AddProduct(tile, tile.dout, p, dvalues_);
    const int64_t width = tile.width();
    const uint16_t* const narrow = Rounded(ds, tile.rows, width);
    columns_.ForEachPart(keys_, tile.begin, tile.end,
                         [&](int64_t c, int64_t count, const uint16_t* columns, bool add) {
                           BestDecoderOps().gemm_bf16(narrow + (c - tile.begin),
                                                      RoundUpToPairs(width), columns, tile.rows, d_,
                                                      count, dq, d_, add);
                         });
  }

  void CopySums(int64_t first, int64_t length, int64_t ld, float* dk, float* dv) const override {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < d_; ++i) {
        dk[t * ld + i] = dkeys_[i * stride_ + first + t];
        dv[t * ld + i] = dvalues_[i * stride_ + first + t];
      }
    }
  }

 private:
  // Rounds x [rows, k] to bf16. Rows of odd length get a zero at their end, because the kernels
  // take numbers in pairs. The result is valid until the next call.
  const uint16_t* Rounded(const float* x, int64_t rows, int64_t k) {
    const int64_t ld = RoundUpToPairs(k);
    narrow_.resize(rows * ld);
    if (ld == k) {
      BestDecoderOps().to_bf16(x, rows * k, narrow_.data());
      return narrow_.data();
    }
    for (int64_t r = 0; r < rows; ++r) {
      BestDecoderOps().to_bf16(x + r * k, k, &narrow_[r * ld]);
      narrow_[r * ld + k] = 0;
    }
    return narrow_.data();
  }

  // Adds x^T w [D, width] to the sums of the tile's keys, for x [rows, D] and w [rows, width].
  void AddProduct(const AttentionTile& tile, const float* x, const float* w,
                  std::vector<float>& sums) {
    const int64_t rows = tile.rows, ld = RoundUpToPairs(rows), width = tile.width();
    // A packed panel of columns, unpacked, is the transpose of these columns.
    panels_.resize(RoundUpToLanes(d_) * ld), transposed_.resize(panels_.size());
    PackColumns(x, d_, rows, d_, panels_.data());
    UnpackRows(panels_.data(), RoundUpToLanes(d_), ld, 0, transposed_.data());
    columns_of_tile_.resize(PackedBf16s(width, rows));
    PackColumns(w, width, rows, width, columns_of_tile_.data());
    BestDecoderOps().gemm_bf16(transposed_.data(), ld, columns_of_tile_.data(), d_, width, rows,
                               &sums[tile.begin], stride_, true);
  }

  const int64_t d_, ld_;
  LoadedKeys keys_;
  KeyColumns<uint16_t> columns_;
  std::vector<uint16_t> packed_values_;
  int64_t stride_ = 0;
  std::vector<float> dkeys_, dvalues_;                                    // [D, stride].
  std::vector<uint16_t> narrow_, panels_, transposed_, columns_of_tile_;  // Of a tile.
};

}  // namespace

std::unique_ptr<AttentionGradProducts> MakeF32Products(int64_t d) {
  return std::make_unique<F32Products>(d);
}
std::unique_ptr<AttentionGradProducts> MakeBf16Products(int64_t d) {
  return std::make_unique<Bf16Products>(d);
}

}  // namespace sluice::train_ops
