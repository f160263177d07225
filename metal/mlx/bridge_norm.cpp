//go:build mlx

// Norms of rows, and of sums that nothing has computed yet.
//
// Start reading at bridge_rms_norm.

#include "add_norm.h"
#include "bridge_internal.h"
#include "bridge_kernel.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "mlx/fast.h"
#include "mlx/fast_primitives.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

using namespace bridge;

namespace {

bool alike(const mx::array &a, const mx::array &b) { return a.shape() == b.shape() && a.dtype() == b.dtype(); }

// A summand as add_norm.h takes it.
struct summand {
  mx::array first, second;
  int kind = add_norm_plain;
  float eps = 0;
  std::optional<mx::array> shares;

  explicit summand(const mx::array &a, bool combines = true) : first(a), second(a) {
    if (const auto *in = made_by(a, "RMSNorm"); in != nullptr && alike((*in)[0], a) && (*in)[1].dtype() == a.dtype() && (*in)[1].shape() == mx::Shape{a.shape(1)}) {
      kind = add_norm_normed;
      eps = static_cast<const mx::fast::RMSNorm &>(a.primitive()).state().second;
      first = (*in)[0], second = (*in)[1];
    } else if (const auto *in = made_by(a, "Add"); in != nullptr && alike((*in)[0], a) && alike((*in)[1], a)) {
      kind = add_norm_added;
      first = (*in)[0], second = (*in)[1];
    }
    if (const auto *in = combined_by_kernel(first); combines && in != nullptr && kind != add_norm_normed) {
      kind = kind == add_norm_added ? add_norm_combined_added : add_norm_combined;
      shares = (*in)[1];
      first = mx::array((*in)[0]);
    }
  }
};

// The sum x and its norm, by one kernel; nothing where x is no sum, or one that was
// started already.
std::vector<mx::array> add_and_norm(const mx::array &x, const mx::array &weight, float eps) {
  if (!runs_kernels() || x.ndim() != 2 || x.dtype() != mx::bfloat16 || weight.dtype() != x.dtype() || x.shape(1) % 8 != 0 || x.shape(1) > add_norm_widest || weight.shape(0) != x.shape(1)) {
    return {};
  }
  auto sum = x;
  std::optional<mx::array> by;
  if (const auto *in = made_by(x, "Multiply"); in != nullptr && alike((*in)[0], x)) { // by a number, which is broadcast
    if (const auto *number = made_by((*in)[1], "Broadcast"); number != nullptr && (*number)[0].size() == 1 && (*number)[0].dtype() == x.dtype()) {
      sum = (*in)[0], by = (*number)[0];
    }
  }
  const auto *in = made_by(sum, "Add");
  if (in == nullptr || !alike((*in)[0], sum) || !alike((*in)[1], sum)) {
    return {};
  }
  static thread_local own_kernel kernel("add_norm", {"a0", "a1", "b0", "b1", "by", "weight", "shares"}, {"sum", "y"}, add_norm_source, add_norm_numbers);
  summand a((*in)[0]), b((*in)[1], !a.shares);
  const auto shares = a.shares ? *a.shares : b.shares.value_or(weight);
  int width = x.shape(1), threads = std::min(add_norm_most_threads, (width / 8 + 31) / 32 * 32);
  auto bits = [](float v) { return std::bit_cast<int>(v); };
  own_kernel::constants how{{"WIDTH", width}, {"THREADS", threads}, {"A", a.kind}, {"B", b.kind}, {"SCALED", by.has_value()}, {"K", a.shares || b.shares ? shares.shape(1) : 1}, {"ROUNDED", shares.dtype() != mx::float32}, {"EPS", bits(eps)}, {"A_EPS", bits(a.eps)}, {"B_EPS", bits(b.eps)}};
  return kernel({a.first, a.second, b.first, b.second, by.value_or(weight), weight, shares}, {x.shape(), x.shape()}, {x.dtype(), x.dtype()}, {x.shape(0) * threads, 1, 1}, {threads, 1, 1}, how);
}

} // namespace

std::optional<mx::array> bridge::norm_of_cut(const mx::array &x) {
  const auto *normed = made_by(x, "RMSNorm");
  if (normed == nullptr || !runs_kernels() || x.ndim() != 2 || x.dtype() != mx::bfloat16 || (*normed)[1].dtype() != x.dtype() || (*normed)[1].shape() != mx::Shape{x.shape(1)}) {
    return std::nullopt;
  }
  const auto &cut = (*normed)[0];
  const auto *in = made_by(cut, "Slice");
  const int width = x.shape(1), threads = std::min(add_norm_most_threads, (width / 8 + 31) / 32 * 32);
  if (in == nullptr || cut.dtype() != x.dtype() || cut.shape() != x.shape() || first_column(cut) != 0 || width % 8 != 0 || width > add_norm_widest || (*in)[0].shape(1) % 8 != 0) {
    return std::nullopt;
  }
  static thread_local own_kernel kernel("norm_cut", {"x", "weight"}, {"y"}, norm_cut_source, add_norm_numbers);
  const auto eps = static_cast<const mx::fast::RMSNorm &>(x.primitive()).state().second;
  return kernel({(*in)[0], (*normed)[1]}, {x.shape()}, {x.dtype()}, {x.shape(0) * threads, 1, 1}, {threads, 1, 1}, {{"WIDTH", width}, {"THREADS", threads}, {"EPS", std::bit_cast<int>(eps)}})[0];
}

extern "C" {

bridge_made bridge_rms_norm(uint64_t owner, bridge_array *x, bridge_array *weight, float eps) {
  return making(owner, [&] {
    if (auto both = add_and_norm(x->value, weight->value, eps); !both.empty()) {
      x->value = both[0]; // which then is computed once
      return both[1];
    }
    int rows = x->value.shape(0), width = weight->value.shape(0), runs = static_cast<int>(x->value.size()) / rows / width;
    auto in = runs == 1 ? flat(x) : mx::reshape(x->value, {rows, runs, 1, width}); // as rotations want heads
    return mx::fast::rms_norm(in, weight->value, eps);
  });
}

bridge_made bridge_layer_norm(uint64_t owner, bridge_array *x, bridge_array *weight, bridge_array *bias, float eps) {
  return making(owner, [&] { return mx::fast::layer_norm(flat(x), weight->value, bias->value, eps); });
}

} // extern "C"
