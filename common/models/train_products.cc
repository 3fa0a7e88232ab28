#include "common/models/train_products.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/models/parallel.h"
#include "common/models/train_function.h"
#include "kernels/decoder/op.h"

namespace sluice::train_ops {
namespace {

// Bytes of a packed piece of a weight: it shares a core's L2 cache with the rows of a tile.
constexpr int64_t kPieceBytes = 256 << 10;
constexpr int64_t kMinPiece = 2 * kDecoderLanes;  // Outputs of the kernels' widest tile.
constexpr int64_t kRowTile = 48;
// Gradients sum over their inputs in parts of this length, so that a piece has enough outputs.
constexpr int64_t kInnerPart = 1024;
// The same for gradients of weights, whose other operand is copied for each piece: the shorter a
// part, the more outputs a piece has, and the fewer copies there are.
constexpr int64_t kColumnPart = 256;

// A part of a product: the inputs begin .. end - 1 of all sums.
struct InnerPart {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// The number of numbers of T that `k` inputs of an output take in a packed weight.
template <typename T>
int64_t PackedInputs(int64_t k) {
  return sizeof(T) == sizeof(uint16_t) ? RoundUpToPairs(k) : k;
}

// How a product with `inner` inputs, of which `part` are multiplied at once, is divided into pieces
// of a weight: `outputs` outputs each, packed into `size` numbers.
template <typename T>
struct PieceShape {
  PieceShape(int64_t inner, int64_t part)
      : width(PackedInputs<T>(std::min(part, inner))),
        outputs(std::max(kMinPiece, kPieceBytes / static_cast<int64_t>(sizeof(T)) / width /
                                        kMinPiece * kMinPiece)),
        size(outputs * width) {}
  const int64_t width, outputs, size;
};

template <typename MultiplyTile, typename T>
void MultiplyRows(int64_t row_begin, int64_t row_end, int64_t first, int64_t count,
                  const InnerPart& part, const T* packed, const MultiplyTile& multiply) {
  for (int64_t r = row_begin; r < row_end; r += kRowTile)
    multiply(r, std::min(kRowTile, row_end - r), first, count, part, packed);
}

// Computes `rows` rows of the outputs [begin, end) of a product:
//   pack(first, count, part, to)                packs the weight of `count` outputs
//   multiply(row, rows, first, count, part, w)  multiplies `rows` rows by them
template <typename T, typename Pack, typename MultiplyTile>
void MultiplyOutputs(int64_t rows, int64_t begin, int64_t end, int64_t inner, int64_t part,
                     const Pack& pack, const MultiplyTile& multiply) {
  thread_local std::vector<T> packed;
  const PieceShape<T> piece(inner, part);
  packed.resize(std::min(piece.outputs, RoundUpToLanes(end - begin)) * piece.width);
  for (int64_t first = begin; first < end; first += piece.outputs) {
    const int64_t count = std::min(piece.outputs, end - first);
    for (int64_t i = 0; i < inner; i += part) {
      const InnerPart at{i, std::min(inner, i + part)};
      pack(first, count, at, packed.data());
      MultiplyRows(0, rows, first, count, at, packed.data(), multiply);
    }
  }
}

// The same for all outputs, with the rows divided among the threads. All of them multiply by the
// whole weight, so it is packed once for all.
template <typename T, typename Pack, typename MultiplyTile>
void MultiplyByWhole(int64_t rows, int64_t outputs, int64_t inner, int64_t part, const Pack& pack,
                     const MultiplyTile& multiply) {
  const PieceShape<T> piece(inner, part);
  const int64_t parts = (inner + part - 1) / part;
  const auto part_at = [&](int64_t i) {
    return InnerPart{i * part, std::min(inner, (i + 1) * part)};
  };
  const auto whole = std::make_unique_for_overwrite<T[]>(
      static_cast<size_t>((outputs + piece.outputs - 1) / piece.outputs * parts * piece.size));
  const auto slot = [&](int64_t first, int64_t i) {
    return whole.get() + (first / piece.outputs * parts + i) * piece.size;
  };
  const int64_t panels = (outputs + kDecoderLanes - 1) / kDecoderLanes;
  ParallelFor(panels, PointGrain(inner * kDecoderLanes), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * kDecoderLanes, count = std::min(kDecoderLanes, outputs - first);
      for (int64_t i = 0; i < parts; ++i) {
        const InnerPart at = part_at(i);
        pack(first, count, at, slot(first, i) + first % piece.outputs * PackedInputs<T>(at.size()));
      }
    }
  });
  ParallelFor(rows, ProductGrain(outputs + inner), [&](int64_t begin, int64_t end) {
    for (int64_t first = 0; first < outputs; first += piece.outputs) {
      const int64_t count = std::min(piece.outputs, outputs - first);
      for (int64_t i = 0; i < parts; ++i)
        MultiplyRows(begin, end, first, count, part_at(i), slot(first, i), multiply);
    }
  });
}

// The same for all rows and outputs, in parallel. The longer side is divided.
template <typename T, typename Pack, typename MultiplyTile>
void MultiplyParallel(int64_t rows, int64_t outputs, int64_t inner, int64_t part, const Pack& pack,
                      const MultiplyTile& multiply) {
  if (rows >= outputs) return MultiplyByWhole<T>(rows, outputs, inner, part, pack, multiply);
  const int64_t panels = (outputs + kDecoderLanes - 1) / kDecoderLanes;
  ParallelFor(
      panels, ProductGrain((rows + inner) * kDecoderLanes), [&](int64_t begin, int64_t end) {
        MultiplyOutputs<T>(rows, begin * kDecoderLanes, std::min(outputs, end * kDecoderLanes),
                           inner, part, pack, multiply);
      });
}

// Packs `count` rows of w [count, K], rounded to bf16.
void PackRounded(const float* w, int64_t count, int64_t k, uint16_t* packed) {
  thread_local std::vector<uint16_t> rows;
  rows.resize(kDecoderLanes * k);
  if (count % kDecoderLanes != 0 || k % 2 != 0) std::fill_n(packed, PackedBf16s(count, k), 0);
  for (int64_t r = 0; r < count; r += kDecoderLanes) {
    const int64_t some = std::min(kDecoderLanes, count - r);
    BestDecoderOps().to_bf16(w + r * k, some * k, rows.data());
    PackRows(rows.data(), some, k, r, packed);
  }
}

// Returns x [M, K], made row by row with put(from, count, to). A row of odd length gets a zero at
// its end, because the bf16 kernels take numbers in pairs.
template <typename T, typename Put>
std::unique_ptr<T[]> CopyEvenRows(const float* x, int64_t m, int64_t k, const Put& put) {
  const int64_t ld = RoundUpToPairs(k);
  auto rows = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(m * ld));
  ParallelFor(m, PointGrain(k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      put(x + r * k, k, &rows[r * ld]);
      if (ld > k) rows[r * ld + k] = T{};
    }
  });
  return rows;
}

std::unique_ptr<uint16_t[]> RoundedRows(const float* x, int64_t m, int64_t k) {
  return CopyEvenRows<uint16_t>(x, m, k, BestDecoderOps().to_bf16);
}

}  // namespace

void Multiply(const float* x, const float* w, int64_t m, int64_t n, int64_t k, Operands operands,
              float* y, int64_t ldy) {
  const DecoderOps& ops = BestDecoderOps();
  if (operands == Operands::kF32) {
    return MultiplyParallel<float>(
        m, n, k, k,
        [&](int64_t first, int64_t count, InnerPart, float* packed) {
          if (count % kDecoderLanes != 0) std::fill_n(packed, PackedFloats(count, k), 0.0f);
          PackRows(w + first * k, count, k, 0, packed);
        },
        [&](int64_t row, int64_t rows, int64_t first, int64_t count, InnerPart,
            const float* packed) {
          ops.gemm(x + row * k, k, packed, rows, count, k, y + row * ldy + first, ldy, false);
        });
  }

  const auto pack = [&](int64_t first, int64_t count, InnerPart, uint16_t* packed) {
    PackRounded(w + first * k, count, k, packed);
  };
  const int64_t ld = RoundUpToPairs(k);
  if (operands == Operands::kBf16) {
    const std::unique_ptr<uint16_t[]> narrow = RoundedRows(x, m, k);
    return MultiplyParallel<uint16_t>(m, n, k, k, pack,
                                      [&](int64_t row, int64_t rows, int64_t first, int64_t count,
                                          InnerPart, const uint16_t* packed) {
                                        ops.gemm_bf16(&narrow[row * ld], ld, packed, rows, count, k,
                                                      y + row * ldy + first, ldy, false);
                                      });
  }
  const std::unique_ptr<float[]> even = CopyEvenRows<float>(
      x, m, k, [](const float* from, int64_t count, float* to) { std::copy_n(from, count, to); });
  MultiplyParallel<uint16_t>(m, n, k, k, pack,
                             [&](int64_t row, int64_t rows, int64_t first, int64_t count, InnerPart,
                                 const uint16_t* packed) {
                               ops.gemm_mixed(&even[row * ld], ld, packed, rows, count, k,
                                              y + row * ldy + first, ldy, false);
                             });
}

void MultiplyGradX(const float* dy, const float* w, int64_t m, int64_t n, int64_t k,
                   Operands operands, float* dx) {
  const DecoderOps& ops = BestDecoderOps();
  if (operands != Operands::kF32) {
    const std::unique_ptr<uint16_t[]> narrow = RoundedRows(dy, m, n);
    const int64_t ld = RoundUpToPairs(n);
    return MultiplyParallel<uint16_t>(
        m, k, n, kInnerPart,
        [&](int64_t first, int64_t count, InnerPart part, uint16_t* packed) {
          PackColumns(w + part.begin * k + first, k, part.size(), count, packed);
        },
        [&](int64_t row, int64_t rows, int64_t first, int64_t count, InnerPart part,
            const uint16_t* packed) {
          ops.gemm_bf16(&narrow[row * ld + part.begin], ld, packed, rows, count, part.size(),
                        dx + row * k + first, k, part.begin > 0);
        });
  }
  MultiplyParallel<float>(
      m, k, n, kInnerPart,
      [&](int64_t first, int64_t count, InnerPart part, float* packed) {
        PackColumns(w + part.begin * k + first, k, part.size(), count, packed);
      },
      [&](int64_t row, int64_t rows, int64_t first, int64_t count, InnerPart part,
          const float* packed) {
        ops.gemm(dy + row * n + part.begin, n, packed, rows, count, part.size(),
                 dx + row * k + first, k, part.begin > 0);
      });
}

void MultiplyGradW(const float* dy, const float* x, int64_t m, int64_t n, int64_t k,
                   Operands operands, float* dw_sum) {
  if (m == 0) return;
  const DecoderOps& ops = BestDecoderOps();
  // Here the outputs of dy are the rows, and the rows of x and dy are what is summed over.
  if (operands != Operands::kF32) {
    return MultiplyParallel<uint16_t>(
        n, k, m, kColumnPart,
        [&](int64_t first, int64_t count, InnerPart part, uint16_t* packed) {
          PackColumns(x + part.begin * k + first, k, part.size(), count, packed);
        },
        [&](int64_t row, int64_t rows, int64_t first, int64_t count, InnerPart part,
            const uint16_t* packed) {
          // A packed panel of columns, unpacked, is the transpose of these columns.
          const int64_t ld = RoundUpToPairs(part.size());
          thread_local std::vector<uint16_t> panels, transposed;
          panels.resize(RoundUpToLanes(rows) * ld), transposed.resize(panels.size());
          PackColumns(dy + part.begin * n + row, n, part.size(), rows, panels.data());
          UnpackRows(panels.data(), RoundUpToLanes(rows), ld, 0, transposed.data());
          ops.gemm_bf16(transposed.data(), ld, packed, rows, count, part.size(),
                        dw_sum + row * k + first, k, true);
        });
  }
  MultiplyParallel<float>(
      n, k, m, kColumnPart,
      [&](int64_t first, int64_t count, InnerPart part, float* packed) {
        PackColumns(x + part.begin * k + first, k, part.size(), count, packed);
      },
      [&](int64_t row, int64_t rows, int64_t first, int64_t count, InnerPart part,
          const float* packed) {
        // The columns of dy are far apart in memory, often by a power of two. Each tile of the
        // product would read them again, from few sets of the cache.
        thread_local std::vector<float> columns;
        columns.resize(part.size() * rows);
        for (int64_t i = 0; i < part.size(); ++i)
          std::copy_n(dy + (part.begin + i) * n + row, rows, &columns[i * rows]);
        ops.gemm_transposed(columns.data(), rows, packed, rows, count, part.size(),
                            dw_sum + row * k + first, k, true);
      });
}

float* GradientSum(const at::Tensor& parameter) {
  at::Tensor& grad = parameter.mutable_grad();
  if (!grad.defined()) grad = at::zeros_like(parameter);
  return grad.mutable_data_ptr<float>();
}

}  // namespace sluice::train_ops
