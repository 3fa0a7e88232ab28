#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/models/train_function.h"
#include "common/models/train_ops.h"
#include "common/models/unit_memory.h"

namespace sluice::train_ops {
namespace {

// LayerParts that an AutogradContext can hold.
struct HeldParts : torch::CustomClassHolder {
  explicit HeldParts(LayerParts p) : parts(std::move(p)) {}
  const LayerParts parts;
};

// A part that this process computes. Its rows are at `place` of the layer's input and output.
struct OwnPart {
  size_t p;
  int64_t place, rows;
};

std::vector<OwnPart> OwnPartsOf(const LayerParts& parts) {
  std::vector<OwnPart> own;
  int64_t place = 0;
  for (size_t p = 0; p + 1 < parts.starts.size(); ++p) {
    if (!parts.owners.empty() && parts.owners[p] != parts.share.rank) continue;
    own.push_back({p, place, parts.starts[p + 1] - parts.starts[p]});
    place += own.back().rows;
  }
  return own;
}

// The rows of a part in the layer's input or output, in the same memory.
at::Tensor RowsOf(const at::Tensor& x, const OwnPart& part) {
  return x.narrow(0, part.place, part.rows);
}

// The rows of part p in a tensor that has those of all parts, in the same memory.
at::Tensor SequenceRows(const at::Tensor& x, const LayerParts& parts, size_t p) {
  return x.narrow(0, parts.starts[p], parts.starts[p + 1] - parts.starts[p]);
}

// Exchanges the rows of two tensors [T, kv_heads * D], which the owner of their part has or gets:
// those of one owner in one message.
void Exchange(const LayerParts& parts,
              const std::function<absl::Status(int, absl::Span<float>)>& exchange,
              const at::Tensor& a, const at::Tensor& b) {
  for (int owner = 0; !parts.owners.empty() && owner < parts.share.world; ++owner) {
    variable_list rows;
    for (size_t p = 0; p < parts.owners.size(); ++p) {
      if (parts.owners[p] != owner) continue;
      rows.push_back(SequenceRows(a, parts, p));
      rows.push_back(SequenceRows(b, parts, p));
    }
    const at::Tensor message = at::cat(rows);
    const absl::Status status =
        exchange(owner, {message.mutable_data_ptr<float>(), static_cast<size_t>(message.numel())});
    if (!status.ok()) throw StatusException(status);
    int64_t place = 0;
    for (const at::Tensor& to : rows) {
      to.copy_(message.narrow(0, place, to.size(0)));
      place += to.size(0);
    }
  }
}

// Computes the keys and values of all parts.
std::shared_ptr<CarriedKeys> CarryKeys(const at::Tensor& x, const LayerParts& parts) {
  const c10::NoGradGuard no_grad;
  auto carried = std::make_shared<CarriedKeys>();
  for (const OwnPart& part : OwnPartsOf(parts)) {
    const auto [k, v] = parts.keys(RowsOf(x, part), part.p);
    if (!carried->k.defined()) {
      carried->k = at::empty({parts.starts.back(), k.size(1)}, k.options());
      carried->v = at::empty_like(carried->k);
    }
    SequenceRows(carried->k, parts, part.p).copy_(k);
    SequenceRows(carried->v, parts, part.p).copy_(v);
  }
  Exchange(parts, parts.share.copy_from, carried->k, carried->v);
  return carried;
}

struct PartsFn : Function<PartsFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const c10::intrusive_ptr<HeldParts>& held) {
    ctx->save_for_backward({x});
    ctx->saved_data["parts"] = c10::IValue::make_capsule(held);
    const LayerParts& parts = held->parts;
    const std::shared_ptr<CarriedKeys> carried = CarryKeys(x, parts);
    variable_list out = {at::empty_like(x)};
    for (const OwnPart& part : OwnPartsOf(parts)) {
      const variable_list result = parts.output(RowsOf(x, part), part.p, carried);
      RowsOf(out[0], part).copy_(result[0]);
      if (result.size() > 1 && out.size() == 1) out.push_back(result[1]);
      else if (result.size() > 1) out[1] = at::add(out[1], result[1]);
    }
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto held =
        c10::static_intrusive_pointer_cast<HeldParts>(ctx->saved_data["parts"].toCapsule());
    const LayerParts& parts = held->parts;
    const at::Tensor x = ctx->get_saved_variables()[0].detach(), dout = grads[0].contiguous();
    const std::shared_ptr<CarriedKeys> carried = CarryKeys(x, parts);
    carried->dk = at::zeros_like(carried->k), carried->dv = at::zeros_like(carried->v);
    at::Tensor dx = at::empty_like(x);
    const at::AutoGradMode with_grad(true);
    // Goes on from the gradient of a part's keys and values, and stores that of its rows.
    const auto finish = [&](const OwnPart& part, const at::Tensor& rows) {
      const auto [k, v] = parts.keys(rows, part.p);
      torch::autograd::backward({k, v}, {SequenceRows(carried->dk, parts, part.p),
                                         SequenceRows(carried->dv, parts, part.p)});
      RowsOf(dx, part).copy_(rows.grad());
    };
    std::vector<OwnPart> own = OwnPartsOf(parts);
    std::reverse(own.begin(), own.end());
    variable_list waiting;  // The rows of `own`, if other processes add to their keys.
    for (const OwnPart& part : own) {
      const at::Tensor rows = RowsOf(x, part).detach().requires_grad_(true);
      variable_list douts = {RowsOf(dout, part)};
      if (grads.size() > 1) douts.push_back(grads[1]);
      torch::autograd::backward(parts.output(rows, part.p, carried), douts);
      if (parts.owners.empty()) finish(part, rows);
      else waiting.push_back(rows);
    }
    Exchange(parts, parts.share.sum_to, carried->dk, carried->dv);
    for (size_t i = 0; i < waiting.size(); ++i) finish(own[i], waiting[i]);
    return {dx, at::Tensor()};
  }
};

}  // namespace

variable_list ComputeInParts(const at::Tensor& x, LayerParts parts) {
  return PartsFn::apply(x, c10::make_intrusive<HeldParts>(std::move(parts)));
}

}  // namespace sluice::train_ops
