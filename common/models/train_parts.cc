#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/custom_class.h>

#include <memory>
#include <utility>

#include "common/models/train_function.h"
#include "common/models/train_ops.h"

namespace sluice::train_ops {
namespace {

// LayerParts that an AutogradContext can hold.
struct HeldParts : torch::CustomClassHolder {
  explicit HeldParts(LayerParts p) : parts(std::move(p)) {}
  const LayerParts parts;
};

// Rows [starts[p], starts[p + 1]) of x, in the same memory.
at::Tensor RowsOf(const at::Tensor& x, const LayerParts& parts, size_t p) {
  return x.narrow(0, parts.starts[p], parts.starts[p + 1] - parts.starts[p]);
}

// Computes the keys and values of all parts.
std::shared_ptr<CarriedKeys> CarryKeys(const at::Tensor& x, const LayerParts& parts) {
  const c10::NoGradGuard no_grad;
  auto carried = std::make_shared<CarriedKeys>();
  for (size_t p = 0; p + 1 < parts.starts.size(); ++p) {
    const auto [k, v] = parts.keys(RowsOf(x, parts, p), p);
    if (p == 0) {
      carried->k = at::empty({x.size(0), k.size(1)}, k.options());
      carried->v = at::empty_like(carried->k);
    }
    RowsOf(carried->k, parts, p).copy_(k);
    RowsOf(carried->v, parts, p).copy_(v);
  }
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
    for (size_t p = 0; p + 1 < parts.starts.size(); ++p) {
      const variable_list part = parts.output(RowsOf(x, parts, p), p, carried);
      RowsOf(out[0], parts, p).copy_(part[0]);
      if (part.size() > 1 && p == 0) out.push_back(part[1]);
      else if (part.size() > 1) out[1] = at::add(out[1], part[1]);
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
    for (size_t p = parts.starts.size() - 1; p-- > 0;) {
      const at::Tensor rows = RowsOf(x, parts, p).detach().requires_grad_(true);
      variable_list douts = {RowsOf(dout, parts, p)};
      if (grads.size() > 1) douts.push_back(grads[1]);
      torch::autograd::backward(parts.output(rows, p, carried), douts);
      const auto [k, v] = parts.keys(rows, p);
      torch::autograd::backward({k, v},
                                {RowsOf(carried->dk, parts, p), RowsOf(carried->dv, parts, p)});
      RowsOf(dx, parts, p).copy_(rows.grad());
    }
    return {dx, at::Tensor()};
  }
};

}  // namespace

variable_list ComputeInParts(const at::Tensor& x, LayerParts parts) {
  return PartsFn::apply(x, c10::make_intrusive<HeldParts>(std::move(parts)));
}

}  // namespace sluice::train_ops
