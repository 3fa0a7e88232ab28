#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/models/adapter.h"
#include "common/models/crew.h"
#include "common/models/decode_tile.h"
#include "common/models/divide.h"
#include "common/models/number_ops.h"

// Operations on a tile that the threads of a crew share. All of them call each function.
namespace sluice {

// Calls work(first, count) for ranges that cover the n outputs of a product. Each range begins with
// a panel.
template <typename Work>
void ForEachOutputRange(const Crew& crew, int64_t n, const Work& work) {
  const int64_t unit = OutputsPerUnit(crew.size(), n);
  crew.ForEach((n + unit - 1) / unit,
               [&](int64_t i) { work(i * unit, std::min(unit, n - i * unit)); });
}

template <typename X, typename T>
void Multiply(const Crew& crew, const NumberOps<T>& ops, const Product<X, T>& product) {
  ForEachOutputRange(crew, product.n, [&](int64_t first, int64_t count) {
    Product<X, T> part = product;
    part.weight += first * NumberOps<T>::PackedInputs(product.k);
    part.n = count;
    part.y += first;
    ops.Multiply(part);
  });
}

// Calls add(adapter, r) for each row r of the tile that has an adapter.
template <typename T, typename Add>
void AddAdapters(const Crew& crew, const Tile<T>& tile, const Add& add) {
  if (!tile.step->adapted) return;
  crew.ForEach(tile.size(), [&](int64_t r) {
    if (const Adapter* adapter = tile.row(r).adapter) add(*adapter, r);
  });
}

// Adds `bias` to the residual stream; an empty one means that the model has none.
template <typename T>
void AddBias(const Crew& crew, const std::vector<float>& bias, Tile<T>* tile) {
  if (bias.empty()) return;
  const int64_t hidden = static_cast<int64_t>(bias.size());
  crew.ForEach(tile->size(), [&](int64_t r) {
    float* x = &tile->x[r * hidden];
    for (int64_t i = 0; i < hidden; ++i) x[i] += bias[i];
  });
}

}  // namespace sluice
