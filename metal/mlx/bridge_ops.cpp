//go:build mlx

// Operations on rows: products with matrices and with those of experts, norms,
// gates, rotations.

#include "bridge_internal.h"
#include "bridge_kernel.h"
#include "experts.h"
#include "few_rows.h"
#include "row_kernels.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "mlx/backend/cuda/cuda.h"
#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"

using namespace bridge;

namespace {

const char *mode_name(int32_t mode) {
  static const char *const names[] = {"affine", "mxfp4", "mxfp8", "nvfp4"};
  return names[mode];
}

std::string experts_header() { return std::string(few_rows_product) + experts_numbers; }

own_kernel &few_rows_kernel() {
  static thread_local own_kernel kernel("few_rows", {"x", "w", "scales", "biases"}, {"y"}, few_rows_source, std::string(few_rows_product) + few_rows_numbers + gate_numbers);
  return kernel;
}

// Products by the kernel for a few rows; by a gate, of its halves.
mx::array multiply_few(const std::vector<mx::array> &in, int gate) {
  int rows = in[0].shape(0), columns = in[0].shape(1), out = in[1].shape(0), warps = (columns + few_rows_columns - 1) / few_rows_columns, threads = 32 * std::min(few_rows_warps, warps);
  return few_rows_kernel()(in, {mx::Shape{rows, gate == gate_none ? out : out / 2}}, {in[0].dtype()}, {out / few_rows_outputs * threads, 1, 1}, {threads, 1, 1},
                           {{"TILES", (rows + 7) / 8}, {"WHOLE", columns % few_rows_columns == 0}, {"GATE", gate}})[0];
}

} // namespace

extern "C" {

bridge_made bridge_embed(uint64_t owner, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode, int32_t type, bridge_array *ids) {
  return making(owner, [&] {
    auto rows = [&](const mx::array &a) {
      if (a.ndim() == 2) {
        return mx::take(a, ids->value, 0);
      }
      auto parts = mx::transpose(mx::take(a, ids->value, 1), {1, 0, 2});
      return mx::reshape(parts, {parts.shape(0), parts.shape(1) * parts.shape(2)});
    };
    if (scales == nullptr) {
      return rows(w->value);
    }
    if (mode != BRIDGE_AFFINE) { // whose values are whole in the type, and which have none of their own
      return mx::dequantize(rows(w->value), rows(scales->value), std::nullopt, group, bits, mode_name(mode), std::nullopt, type_of(type));
    }
    return mx::dequantize(rows(w->value), rows(scales->value), rows(biases->value), group, bits, "affine");
  });
}

// Whether few_rows.h has a kernel for products with a matrix [out, in].
static bool has_few_rows(mx::Dtype type, int32_t group, int32_t bits, int32_t out, int32_t in) {
  return runs_kernels() && type == mx::bfloat16 && bits == 4 && group == 64 && out % few_rows_outputs == 0 && in % 64 == 0;
}

// The biases, if there are any.
static std::optional<mx::array> optional_biases(const bridge_array *biases) { return biases == nullptr ? std::nullopt : std::optional(biases->value); }

static bool suits_few_rows(const mx::array &x, const mx::array &w, const mx::array &scales, int32_t group, int32_t bits) {
  return x.shape(0) <= (x.shape(1) % few_rows_columns == 0 ? some_rows : few_rows) && w.ndim() == 2 && x.dtype() == scales.dtype() && has_few_rows(scales.dtype(), group, bits, w.shape(0), x.shape(1));
}

static mx::array multiply_few_rows(const mx::array &x, const mx::array &w, const mx::array &scales, const mx::array &biases) {
  static thread_local own_kernel some(
      "some_rows", {"x", "w", "scales", "biases"}, {"y"}, some_rows_source, std::string(few_rows_product) + some_rows_machine + some_rows_numbers);
  int rows = x.shape(0), out = w.shape(0);
  if (rows > few_rows) {
    int blocks = (out + some_rows_outputs - 1) / some_rows_outputs, tiles = (rows + some_rows_at_once - 1) / some_rows_at_once;
    return some({x, w, scales, biases}, {mx::Shape{rows, out}}, {x.dtype()}, {blocks * some_rows_threads, tiles, 1}, {some_rows_threads, 1, 1})[0];
  }
  return multiply_few({x, w, scales, biases}, gate_none);
}

// Compiles the kernels for rows that are whole or not, and one for each number of
// tiles, some seconds each, which would otherwise be a pause in the middle of an answer.
static void compile_few_rows(bool whole) {
  static thread_local bool done[2] = {};
  if (std::exchange(done[whole], true)) {
    return;
  }
  std::vector<mx::array> made;
  for (int rows : {1, 9, 17}) {
    if (rows > few_rows && !whole) {
      break;
    }
    const int columns = whole ? few_rows_columns : 64;
    auto number = [](mx::Shape shape) { return mx::zeros(std::move(shape), mx::bfloat16); };
    auto w = mx::zeros({few_rows_outputs, columns / 8}, mx::uint32);
    made.push_back(multiply_few_rows(number({rows, columns}), w, number({few_rows_outputs, columns / 64}), number({few_rows_outputs, columns / 64})));
  }
  mx::eval(std::move(made));
}

bridge_status bridge_few_rows(uint64_t owner, int32_t type, int32_t group, int32_t bits, int32_t out, int32_t in, int32_t *has) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    *has = has_few_rows(type_of(type), group, bits, out, in);
    if (*has) {
      compile_few_rows(in % few_rows_columns == 0);
    }
  });
}

bridge_status bridge_halve(uint64_t owner, int64_t from) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { self.halved_from = from; });
}

// The outputs of a matrix in two halves, on two streams of a processor, each of
// which computes on one core.
static mx::array multiply_in_halves(const mx::array &x, const mx::array &w, const mx::array &scales, const std::optional<mx::array> &biases, int group, int bits, int32_t mode) {
  if (!second_stream) {
    second_stream = mx::new_stream(mx::Device::cpu);
  }
  int out = w.shape(0), half = out / 2;
  auto part = [&](int from, int to, mx::StreamOrDevice on) {
    auto rows = [&](const mx::array &a) { return mx::slice(a, {from, 0}, {to, a.shape(1)}, on); };
    return mx::quantized_matmul(x, rows(w), rows(scales), biases ? std::optional(rows(*biases)) : std::nullopt, true, group, bits, mode_name(mode), on);
  };
  auto second = part(half, out, *second_stream);
  return mx::concatenate({part(0, half, {}), second}, 1);
}

bridge_made bridge_linear(uint64_t owner, bridge_array *x, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode) {
  return making(owner, [&] {
    if (scales == nullptr) {
      return mx::matmul(flat(x), mx::transpose(w->value));
    }
    auto in = flat(x);
    int rows = in.shape(0);
    if (mode == BRIDGE_AFFINE && suits_few_rows(in, w->value, scales->value, group, bits)) {
      if (auto normed = norm_of_cut(in)) {
        x->value = in = *normed; // which then is computed once
      }
      return multiply_few_rows(in, w->value, scales->value, biases->value);
    }
    // CUDA's kernel for 8 rows and more is faster from 3 rows on.
    bool pad = rows > 2 && rows < 8 && on_gpu() && mx::cu::is_available();
    if (pad) {
      in = mx::concatenate({in, mx::zeros({8 - rows, in.shape(1)}, in.dtype())}, 0);
    }
    int parts = w->value.ndim() == 3 ? w->value.shape(0) : 1;
    if (!on_gpu() && parts == 1 && static_cast<int64_t>(w->value.shape(0)) * in.shape(1) >= self.halved_from && w->value.shape(0) > 1) {
      return multiply_in_halves(in, w->value, scales->value, optional_biases(biases), group, bits, mode);
    }
    if (parts > 1) {
      in = mx::transpose(mx::reshape(in, {in.shape(0), parts, in.shape(1) / parts}), {1, 0, 2});
    }
    auto out = mx::quantized_matmul(in, w->value, scales->value, optional_biases(biases), true, group, bits, mode_name(mode));
    if (parts > 1) {
      out = mx::sum(out, 0);
    }
    return pad ? rows_of(out, 0, rows) : out;
  });
}

// A dense product and its bias, which are rounded once, as in mlx.nn's Linear.
bridge_made bridge_linear_bias(uint64_t owner, bridge_array *x, bridge_array *w, bridge_array *bias) {
  return making(owner, [&] { return mx::addmm(bias->value, flat(x), mx::transpose(w->value)); });
}

bridge_made bridge_softmax(uint64_t owner, bridge_array *scores) {
  return making(owner, [&] { return mx::softmax(flat(scores), -1, true); });
}

bridge_made bridge_largest(uint64_t owner, bridge_array *x, int32_t k) {
  return making(owner, [&] {
    auto in = flat(x);
    int rows = in.shape(0), width = in.shape(1);
    auto places = mx::argpartition(in, -k, -1);
    auto last = mx::slice(places, {0, width - k}, {rows, width});
    return mx::reshape(mx::astype(last, mx::int32), {rows * k});
  });
}

bridge_made bridge_shares(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t k, int32_t normalized, float least, bridge_array *each) {
  return making(owner, [&] {
    auto ids = mx::reshape(chosen->value, {x->value.shape(0), k});
    auto shares = mx::take_along_axis(x->value, ids, -1);
    if (normalized) {
      auto sum = mx::sum(shares, -1, true);
      shares = mx::divide(shares, least > 0 ? mx::add(sum, mx::array(least, sum.dtype())) : sum);
    }
    return each ? mx::multiply(shares, mx::astype(mx::take(each->value, ids), shares.dtype())) : shares;
  });
}

bridge_made bridge_top_shares(uint64_t owner, bridge_array *scores, bridge_array *chosen, int32_t k) {
  return making(owner, [&] {
    auto x = flat(scores);
    return mx::softmax(mx::take_along_axis(x, mx::reshape(chosen->value, {x.shape(0), k}), -1), -1, true);
  });
}

// What scores of a few rows are the product of, which was not started yet: rows and a
// router of bfloat16; nothing where they are anything else.
static std::vector<mx::array> unscored(const mx::array &scores) {
  const auto *in = made_by(scores, "Matmul");
  if (in == nullptr || scores.shape(0) > experts_score_rows || (*in)[0].ndim() != 2 || (*in)[0].shape(1) % 8 != 0 || (*in)[0].dtype() != mx::bfloat16) {
    return {};
  }
  const auto *router = made_by((*in)[1], "Transpose");
  if (router == nullptr || (*router)[0].dtype() != mx::bfloat16 || (*router)[0].shape() != mx::Shape{scores.shape(1), (*in)[0].shape(1)}) {
    return {};
  }
  return {(*in)[0], (*router)[0]};
}

// Chooses by one kernel; out stays as it is where there is none for these operands.
bridge_status bridge_route(uint64_t owner, bridge_array *scores, const bridge_router *router, bridge_made *out) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto x = flat(scores);
    int rows = x.shape(0), experts = x.shape(1), k = router->k;
    bool narrow = x.dtype() == mx::bfloat16;
    if (!runs_kernels() || (router->groups > 1 && router->top_groups != router->groups) || k > 32 || experts > 512 || (router->rounded != 0 && !narrow && x.dtype() != mx::float32)) {
      return;
    }
    bool rounded = router->rounded != 0 && narrow;
    own_kernel::constants how{
        {"EXPERTS", experts}, {"K", k}, {"SIGMOID", router->sigmoid != 0}, {"BIASED", router->bias != nullptr}, {"NORMALIZED", router->normalized != 0}, {"EACH", router->each != nullptr},
        {"ROUNDED", rounded}, {"LEAST", std::bit_cast<int>(router->least)}, {"SCALE", std::bit_cast<int>(router->scale)}};
    auto in = unscored(x);
    const bool scored = in.empty();
    if (scored) {
      in = {x};
    }
    for (const auto *a : {router->bias, router->each}) {
      in.push_back(a == nullptr ? in[0] : a->value); // what there is not is not read
    }
    static thread_local own_kernel route("experts_route", {"scores", "bias", "each"}, {"ids", "shares"}, std::string(experts_scored_source) + experts_route_source, experts_header());
    static thread_local own_kernel score("experts_score", {"x", "router", "bias", "each"}, {"ids", "shares"}, std::string(experts_score_source) + experts_route_source, experts_header());
    int blocks = scored ? (rows + experts_route_rows - 1) / experts_route_rows : rows, threads = scored ? 32 * experts_route_rows : experts_score_threads;
    auto both = (scored ? route : score)(in, {mx::Shape{rows * k}, mx::Shape{rows, k}}, {mx::int32, rounded ? mx::bfloat16 : mx::float32}, {blocks * threads, 1, 1}, {threads, 1, 1}, how);
    out[0] = hand_over(both[0]), out[1] = hand_over(both[1]);
  });
}

// In the type of the scores, as mlx-lm computes it.
bridge_status bridge_mix(uint64_t owner, bridge_array *scores, int32_t k, float jitter, bridge_made *out) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto x = flat(scores), left = x;
    auto none = mx::array(-std::numeric_limits<float>::infinity(), x.dtype());
    std::vector<mx::array> ids, shares;
    for (int i = 0; i < k; i++) {
      auto best = mx::max(left, -1, true);
      auto id = mx::astype(mx::argmax(left, -1, true), mx::int32);
      auto far = mx::greater(mx::divide(mx::subtract(best, x), mx::maximum(mx::abs(x), best)), mx::array(2 * jitter, x.dtype()));
      shares.push_back(mx::take_along_axis(mx::softmax(mx::where(far, none, left), -1, true), id, -1));
      left = mx::put_along_axis(left, id, none, -1);
      ids.push_back(std::move(id));
    }
    out[0] = hand_over(mx::reshape(mx::concatenate(std::move(ids), -1), {x.shape(0) * k}));
    out[1] = hand_over(mx::concatenate(std::move(shares), -1));
  });
}

// In float32, in which mlx-lm and transformers route.
bridge_made bridge_weights(uint64_t owner, bridge_array *scores, int32_t sigmoid) {
  return making(owner, [&] {
    auto in = mx::astype(flat(scores), mx::float32);
    return sigmoid ? mx::sigmoid(in) : mx::softmax(in, -1, true);
  });
}

bridge_made bridge_wanted(uint64_t owner, bridge_array *weights, const bridge_router *router) {
  return making(owner, [&] {
    auto wanted = flat(weights);
    if (router->bias != nullptr) {
      wanted = mx::add(wanted, mx::astype(router->bias->value, wanted.dtype()));
    }
    int rows = wanted.shape(0), experts = wanted.shape(1), groups = router->groups;
    if (groups < 2 || router->top_groups == groups) {
      return wanted;
    }
    auto grouped = mx::reshape(wanted, {rows, groups, experts / groups});
    auto best = router->pairs ? mx::sum(mx::topk(grouped, 2, -1), -1) : mx::max(grouped, -1);
    auto least = mx::min(mx::topk(best, router->top_groups, -1), -1, true);
    auto out = mx::expand_dims(mx::less(best, least), -1);
    return mx::reshape(mx::where(out, mx::array(-std::numeric_limits<float>::infinity()), grouped), {rows, experts});
  });
}

namespace {

// A matrix of experts, packed; biases are there where experts.h has a kernel for it.
struct packed {
  const mx::array &w, &scales, &biases;
};

// Whether experts.h has kernels for products of x with experts of w.
bool suits_experts(const mx::array &x, int experts, const mx::array &w, const mx::array &scales, int32_t group, int32_t bits, int32_t mode) {
  return runs_kernels() && mode == BRIDGE_AFFINE && bits == 4 && group == 64 && w.ndim() == 2 && x.dtype() == mx::bfloat16 && scales.dtype() == mx::bfloat16 && x.shape(-1) % 64 == 0 &&
         w.shape(0) / experts % 32 == 0 && experts <= experts_most;
}

// The order of chosen experts and its tiles.
void sort_chosen(const mx::array &ids, int experts) {
  if (!self.sorted.empty() && self.sorted[0].id() == ids.id()) {
    return;
  }
  static thread_local own_kernel kernel("experts_sort", {"ids"}, {"order", "tiles"}, experts_sort_source);
  int n = ids.shape(0), most = n / experts_tile + std::min(n, experts);
  auto both = kernel({ids}, {mx::Shape{n}, mx::Shape{1 + 3 * most}}, {mx::int32, mx::int32}, {experts_sort_threads, 1, 1}, {experts_sort_threads, 1, 1},
                     {{"EXPERTS", experts}, {"TILE", experts_tile}});
  self.sorted = {ids, both[0], both[1]};
}

// A kernel of experts.h for one matrix or for two of one shape; gated, with one result.
own_kernel experts_kernel(const std::string &name, std::vector<std::string> in, bool two, const std::string &source, bool gated = false) {
  std::vector<std::string> out;
  for (const char *which : {"0", "1"}) {
    for (const char *of : {"w", "scales", "biases"}) {
      in.push_back(two ? std::string(of) + which : of);
    }
    if (!gated || out.empty()) {
      out.push_back(two && !gated ? std::string("y") + which : "y");
    }
    if (!two) {
      break;
    }
  }
  const char *one = gated ? experts_one_of_gated : two ? experts_one_of_two : "";
  return own_kernel(name + (gated ? "_gated" : two ? "_of_two" : ""), in, out, one + source, experts_header() + (name == "experts_few" ? gate_numbers : ""));
}

own_kernel &experts_few_kernel(bool two) {
  static thread_local own_kernel kernels[] = {experts_kernel("experts_few", {"x", "ids"}, false, experts_few_source), experts_kernel("experts_few", {"x", "ids"}, true, experts_few_source)};
  return kernels[two];
}

// Products of rows with one matrix or with two of one shape by the kernels of experts.h.
std::vector<mx::array> multiply_experts(const mx::array &x, const mx::array &ids, int experts, const std::vector<packed> &ms) {
  static thread_local own_kernel many[] = {experts_kernel("experts_many", {"x", "order", "tiles"}, false, experts_many_source), experts_kernel("experts_many", {"x", "order", "tiles"}, true, experts_many_source)};
  int n = ids.shape(0), out = ms[0].w.shape(0) / experts, z = static_cast<int>(ms.size());
  std::vector<mx::array> in{x};
  if (n <= experts) {
    in.push_back(ids);
  } else {
    sort_chosen(ids, experts);
    in.insert(in.end(), self.sorted.begin() + 1, self.sorted.end());
  }
  for (const auto &m : ms) {
    in.insert(in.end(), {m.w, m.scales, m.biases});
  }
  std::vector<mx::Shape> shapes(ms.size(), mx::Shape{n, out});
  std::vector<mx::Dtype> types(ms.size(), x.dtype());
  if (n <= experts) {
    int blocks = (out + experts_few_outputs - 1) / experts_few_outputs;
    return experts_few_kernel(z == 2)(in, shapes, types, {blocks * experts_few_threads, n, z}, {experts_few_threads, 1, 1}, {{"EXPERTS", experts}, {"GATE", gate_none}});
  }
  int blocks = (out + experts_many_outputs - 1) / experts_many_outputs, most = n / experts_tile + experts;
  return many[z - 1](in, shapes, types, {blocks * experts_many_threads, most, z}, {experts_many_threads, 1, 1}, {{"EXPERTS", experts}});
}

} // namespace

// With this many products or more, rows are sorted by their expert, so that each
// expert's weights are read once (mlx-lm 0.32.2, models/switch_layers.py).
constexpr int sorted_from = 64;

// Rows of x [rows, in], each by k experts: [rows*k, out]. Weights are [experts*out, width].
static mx::array multiply_chosen(const mx::array &x, const mx::array &ids, int experts, const mx::array &w, const mx::array *scales, const mx::array *biases, int group, int bits, int32_t mode) {
  int rows = x.shape(0), in = x.shape(1), n = static_cast<int>(ids.size()), out = w.shape(0) / experts;
  auto stack = [&](const mx::array &a) { return mx::reshape(a, {experts, out, a.shape(1)}); };
  auto multiply = [&](const mx::array &of, const mx::array &by, bool sorted) {
    if (scales == nullptr) {
      return mx::gather_mm(of, mx::swapaxes(stack(w), -1, -2), std::nullopt, by, sorted);
    }
    return mx::gather_qmm(of, stack(w), stack(*scales), biases == nullptr ? std::nullopt : std::optional(stack(*biases)), std::nullopt, by, true, group, bits, mode_name(mode), std::nullopt, sorted);
  };
  if (n < sorted_from) {
    auto y = multiply(mx::reshape(x, {rows, 1, 1, in}), mx::reshape(ids, {rows, n / rows}), false);
    return mx::reshape(y, {n, out});
  }
  auto order = mx::argsort(ids);
  auto from = n == rows ? order : mx::floor_divide(order, mx::array(static_cast<uint32_t>(n / rows)));
  auto y = multiply(mx::reshape(mx::take(x, from, 0), {n, 1, in}), mx::take(ids, order, 0), true);
  return mx::take(mx::reshape(y, {n, out}), mx::argsort(order), 0);
}

// Products of rows and the experts that were chosen for them, whose matrices may
// lie in parts of their columns.
static mx::array linear_of(const mx::array &in, const mx::array &chosen, int32_t experts, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode) {
  if (scales == nullptr) {
    return multiply_chosen(in, chosen, experts, w->value, nullptr, nullptr, 0, 0, mode);
  }
  if (biases != nullptr && suits_experts(in, experts, w->value, scales->value, group, bits, mode)) {
    return multiply_experts(in, chosen, experts, {{w->value, scales->value, biases->value}})[0];
  }
  if (w->value.ndim() == 2) {
    return multiply_chosen(in, chosen, experts, w->value, &scales->value, biases == nullptr ? nullptr : &biases->value, group, bits, mode);
  }
  int parts = w->value.shape(0), width = in.shape(1) / parts;
  std::optional<mx::array> sum;
  for (int p = 0; p < parts; p++) { // of columns
    auto part = [&](const bridge_array *a) { return mx::reshape(mx::slice(a->value, {p, 0, 0}, {p + 1, a->value.shape(1), a->value.shape(2)}), {a->value.shape(1), a->value.shape(2)}); };
    auto words = part(w), s = part(scales);
    auto b = biases == nullptr ? std::nullopt : std::optional(part(biases));
    auto y = multiply_chosen(mx::slice(in, {0, p * width}, {in.shape(0), (p + 1) * width}), chosen, experts, words, &s, b ? &*b : nullptr, group, bits, mode);
    sum = sum ? mx::add(*sum, y) : y;
  }
  return *sum;
}

bridge_made bridge_linear_of(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t experts, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode) {
  return making(owner, [&] { return linear_of(flat(x), chosen->value, experts, w, scales, biases, group, bits, mode); });
}

bridge_status bridge_linear_of_two(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t experts, bridge_array **one, bridge_array **two, int32_t group, int32_t bits, int32_t mode, bridge_made *out) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto in = flat(x);
    if (one[2] == nullptr || !suits_experts(in, experts, one[0]->value, one[1]->value, group, bits, mode) || one[0]->value.shape() != two[0]->value.shape()) {
      return;
    }
    auto both = multiply_experts(in, chosen->value, experts, {{one[0]->value, one[1]->value, one[2]->value}, {two[0]->value, two[1]->value, two[2]->value}});
    out[0] = hand_over(both[0]), out[1] = hand_over(both[1]);
  });
}

// The heads that x was cut out of at their first columns, [tokens, heads, more], if a
// kernel can skip the others; x otherwise, as [rows, columns].
static mx::array uncut(const mx::array &x, int rows, int columns) {
  if (const auto *in = made_by(x, "Slice"); in != nullptr && x.ndim() == 3 && x.shape(2) == columns && (*in)[0].ndim() == 3 && (*in)[0].shape(2) % 8 == 0) {
    auto [start, end, strides] = static_cast<const mx::Slice &>(x.primitive()).state();
    if (start == mx::Shape{0, 0, 0} && strides == mx::Shape{1, 1, 1} && (*in)[0].shape(0) == x.shape(0) && (*in)[0].shape(1) == x.shape(1)) {
      return mx::reshape((*in)[0], {rows, (*in)[0].shape(2)});
    }
  }
  return mx::reshape(x, {rows, columns});
}

// Every head is a row for the one expert that is its matrix.
bridge_made bridge_linear_each(uint64_t owner, bridge_array *x, int32_t heads, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode) {
  return making(owner, [&] {
    int tokens = x->value.shape(0), width = static_cast<int>(x->value.size()) / tokens / heads;
    auto found = self.masks.find({-3, tokens, heads}); // no position is -3
    if (found == self.masks.end()) {
      auto all = mx::reshape(mx::broadcast_to(mx::arange(0, heads, mx::int32), {tokens, heads}), {tokens * heads});
      found = self.masks.emplace(std::vector<int32_t>{-3, tokens, heads}, all).first;
    }
    const auto &who = found->second;
    auto y = scales != nullptr && biases != nullptr && suits_experts(x->value, heads, w->value, scales->value, group, bits, mode) && width % 64 == 0
                 ? multiply_experts(uncut(x->value, tokens * heads, width), who, heads, {{w->value, scales->value, biases->value}})[0]
                 : linear_of(mx::reshape(x->value, {tokens * heads, width}), who, heads, w, scales, biases, group, bits, mode);
    return mx::reshape(y, {tokens, heads * y.shape(1)});
  });
}

static own_kernel &combine_kernel() {
  static thread_local own_kernel kernel("experts_combine", {"y", "shares"}, {"out"}, experts_combine_source, experts_header());
  return kernel;
}

static mx::array combine_by_kernel(const mx::array &y, const mx::array &shares) {
  int tokens = shares.shape(0), width = y.shape(1);
  return combine_kernel()({y, shares}, {mx::Shape{tokens, width}}, {y.dtype()}, {tokens * (width / experts_combine_columns), 1, 1}, {experts_combine_threads, 1, 1},
                {{"K", shares.shape(1)}, {"ROUNDED", shares.dtype() != mx::float32}})[0];
}

bridge_made bridge_combine(uint64_t owner, bridge_array *y, bridge_array *shares) {
  return making(owner, [&] {
    int tokens = shares->value.shape(0), k = shares->value.shape(1);
    if (runs_kernels() && y->value.dtype() == mx::bfloat16 && y->value.ndim() == 2 && y->value.shape(1) % experts_combine_columns == 0) {
      return combine_by_kernel(y->value, shares->value);
    }
    auto rows = mx::reshape(y->value, {tokens, k, y->value.shape(1)});
    return mx::astype(mx::sum(mx::multiply(rows, mx::expand_dims(shares->value, -1)), 1), y->value.dtype());
  });
}

bridge_made bridge_rows(uint64_t owner, bridge_array *x, const int32_t *rows, int32_t n) {
  return making(owner, [&] {
    bool all = n == x->value.shape(0);
    for (int32_t i = 0; i < n && all; i++) {
      all = rows[i] == i;
    }
    return all ? x->value : mx::take(flat(x), mx::array(rows, mx::Shape{n}, mx::int32), 0);
  });
}

bridge_made bridge_place(uint64_t owner, bridge_array *x, const int32_t *rows, int32_t n, bridge_array *y) {
  return making(owner, [&] {
    auto fresh = mx::reshape(mx::astype(y->value, x->value.dtype()), {n, 1, x->value.shape(1)});
    return mx::scatter(flat(x), {mx::array(rows, mx::Shape{n}, mx::int32)}, fresh, {0});
  });
}

// The place of a largest number, or -1 where that is none: of numbers, places,
// infinity and -1.
static std::vector<mx::array> place_of(const std::vector<mx::array> &in) {
  return {mx::where(mx::less(mx::abs(in[0]), in[2]), mx::astype(in[1], mx::int32), in[3])};
}

bridge_made bridge_argmax(uint64_t owner, bridge_array *x, int32_t width) {
  return making(owner, [&] {
    auto first = mx::slice(flat(x), {0, 0}, {x->value.shape(0), width});
    auto infinity = mx::array(std::numeric_limits<float>::infinity(), first.dtype());
    std::vector<mx::array> largest{mx::max(first, -1), mx::argmax(first, -1), infinity, mx::array(-1)}; // a NaN is the largest
    return fused<place_of>(largest)[0];
  });
}

bridge_made bridge_add(uint64_t owner, bridge_array *a, bridge_array *b) {
  return making(owner, [&] { return mx::add(flat(a), flat(b)); });
}

// x with a number of by for each of the equal runs of a row.
static mx::array multiply_runs(const mx::array &x, const mx::array &by) {
  int rows = x.shape(0), runs = by.shape(1);
  auto cut = mx::reshape(x, {rows, runs, x.shape(1) / runs});
  return mx::reshape(mx::multiply(cut, mx::expand_dims(by, -1)), x.shape());
}

bridge_made bridge_multiply(uint64_t owner, bridge_array *a, bridge_array *b) {
  return making(owner, [&] {
    if (a->value.ndim() > 1 && b->value.ndim() == 1) {
      return mx::multiply(flat(a), mx::astype(b->value, flat(a).dtype()));
    }
    auto x = flat(a), by = flat(b);
    return x.ndim() < 2 || by.shape(1) == x.shape(1) ? mx::multiply(x, by) : multiply_runs(x, mx::astype(by, x.dtype()));
  });
}

bridge_made bridge_add_bias(uint64_t owner, bridge_array *x, bridge_array *bias) {
  return making(owner, [&] { return mx::add(flat(x), bias->value); });
}

static std::vector<mx::array> silu(const std::vector<mx::array> &in) { return {mx::multiply(in[0], mx::sigmoid(in[0]))}; }

bridge_made bridge_silu(uint64_t owner, bridge_array *x) {
  return making(owner, [&] { return fused<silu>({flat(x)})[0]; });
}

// The products that a gate and what it lets through are made of, which were not started
// yet, with the unit that gates, by one kernel; nothing where there is none for them.
static std::optional<mx::array> multiply_gated(const mx::array &gate, const mx::array &up, int by) {
  if (!runs_kernels() || gate.ndim() != 2 || gate.shape() != up.shape()) {
    return std::nullopt;
  }
  const int width = gate.shape(1);
  if (first_column(gate) == 0 && first_column(up) == width && gate.inputs()[0].id() == up.inputs()[0].id()) {
    const auto &both = gate.inputs()[0];
    const auto *in = few_rows_kernel().operands(both);
    return in != nullptr && both.shape(1) == 2 * width ? std::optional(multiply_few(*in, by)) : std::nullopt;
  }
  const auto *in = experts_few_kernel(true).operands(gate);
  if (in == nullptr || experts_few_kernel(true).operands(up) == nullptr || up.outputs()[0].id() != gate.id()) {
    return std::nullopt;
  }
  static thread_local own_kernel kernel = experts_kernel("experts_few", {"x", "ids"}, true, experts_few_source, true);
  int n = gate.shape(0), experts = (*in)[2].shape(0) / width;
  return kernel(*in, {gate.shape()}, {gate.dtype()}, {width / experts_few_outputs * 2 * experts_few_threads, n, 1}, {experts_few_threads, 1, 1}, {{"EXPERTS", experts}, {"GATE", by}})[0];
}

static std::vector<mx::array> swiglu(const std::vector<mx::array> &in) {
  return {mx::multiply(mx::multiply(in[0], mx::sigmoid(in[0])), in[1])};
}

bridge_made bridge_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up) {
  return making(owner, [&] {
    auto x = flat(gate), by = flat(up);
    auto out = multiply_gated(x, by, gate_silu);
    return out ? *out : fused<swiglu>({x, by})[0];
  });
}

// As mlx.nn's gelu_approx, whose constants have the type of their operand.
static std::vector<mx::array> geglu(const std::vector<mx::array> &in) {
  const auto &x = in[0];
  auto number = [&](float v) { return mx::array(v, x.dtype()); };
  auto inner = mx::add(x, mx::multiply(number(0.044715f), mx::power(x, number(3))));
  auto t = mx::tanh(mx::multiply(number(0.7978845608028654f), inner));
  return {mx::multiply(mx::multiply(mx::multiply(number(0.5f), x), mx::add(number(1), t)), in[1])};
}

// By one kernel: compiled, it is two. Rows are those of a matrix, or of parts of its
// columns.
static mx::array geglu_by_kernel(const mx::array &gate, const mx::array &up) {
  static thread_local own_kernel kernel("geglu", {"gate", "up"}, {"y"}, geglu_source, gate_numbers, false);
  int blocks = (static_cast<int>(gate.size()) + rows_threads - 1) / rows_threads;
  return kernel({gate, up}, {gate.shape()}, {gate.dtype()}, {blocks * rows_threads, 1, 1}, {rows_threads, 1, 1})[0];
}

bridge_made bridge_geglu(uint64_t owner, bridge_array *gate, bridge_array *up) {
  return making(owner, [&] {
    auto x = flat(gate), by = flat(up);
    if (auto out = multiply_gated(x, by, gate_gelu)) {
      return *out;
    }
    bool suits = runs_kernels() && x.ndim() == 2 && x.dtype() == mx::bfloat16 && by.dtype() == x.dtype() && by.shape() == x.shape() && x.size() < (1u << 31);
    return suits ? geglu_by_kernel(x, by) : fused<geglu>({x, by})[0];
  });
}

// As mlx-lm's swiglu_oai: of gate, up, the upper limit, the lower limit, one and alpha.
static std::vector<mx::array> clamped_swiglu(const std::vector<mx::array> &in) {
  auto gate = mx::minimum(in[0], in[2]), up = mx::minimum(mx::maximum(in[1], in[3]), in[2]);
  return {mx::multiply(mx::add(up, in[4]), mx::multiply(gate, mx::sigmoid(mx::multiply(in[5], gate))))};
}

// Constants have the type of their operand.
bridge_made bridge_clamped_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up, float alpha, float limit) {
  return making(owner, [&] {
    auto g = flat(gate);
    auto number = [&](float v) { return mx::array(v, g.dtype()); };
    return fused<clamped_swiglu>({g, flat(up), number(limit), number(-limit), number(1), number(alpha)})[0];
  });
}

// As mlx-lm's clamped_swiglu: of gate, up, the upper limit and the lower limit.
static std::vector<mx::array> limited_swiglu(const std::vector<mx::array> &in) {
  auto gate = mx::minimum(mx::multiply(in[0], mx::sigmoid(in[0])), in[2]), up = mx::minimum(mx::maximum(in[1], in[3]), in[2]);
  return {mx::multiply(gate, up)};
}

bridge_made bridge_limited_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up, float limit) {
  return making(owner, [&] {
    auto g = flat(gate);
    return fused<limited_swiglu>({g, flat(up), mx::array(limit, g.dtype()), mx::array(-limit, g.dtype())})[0];
  });
}

bridge_made bridge_softplus(uint64_t owner, bridge_array *x) {
  return making(owner, [&] {
    auto in = mx::astype(flat(x), mx::float32);
    return mx::astype(mx::logaddexp(in, mx::array(0.0f)), x->value.dtype());
  });
}

static std::vector<mx::array> relu2(const std::vector<mx::array> &in) { return {mx::square(mx::maximum(in[0], in[1]))}; }

bridge_made bridge_relu2(uint64_t owner, bridge_array *x) {
  return making(owner, [&] {
    auto in = flat(x);
    return fused<relu2>({in, mx::array(0, in.dtype())})[0];
  });
}

// In the type of x, as mlx-lm computes it (models/gemma3n.py, gelu_topk).
bridge_made bridge_exceed(uint64_t owner, bridge_array *x, float by) {
  return making(owner, [&] {
    auto in = flat(x);
    auto from = mx::add(mx::mean(in, -1, true), mx::multiply(mx::std(in, -1, true), mx::array(by, in.dtype())));
    return mx::maximum(mx::subtract(in, from), mx::array(0, in.dtype()));
  });
}

// A product of float32 for each row.
bridge_made bridge_mix_runs(uint64_t owner, bridge_array *x, bridge_array *by, int32_t n, int32_t m) {
  return making(owner, [&] {
    auto in = flat(x);
    int rows = in.shape(0), width = in.shape(1) / n;
    auto factors = mx::reshape(mx::astype(flat(by), mx::float32), {rows, m, n});
    auto out = mx::matmul(factors, mx::reshape(mx::astype(in, mx::float32), {rows, n, width}));
    return mx::astype(mx::reshape(out, {rows, m * width}), in.dtype());
  });
}

bridge_made bridge_level(uint64_t owner, bridge_array *x, bridge_array *like, float least) {
  return making(owner, [&] {
    auto in = flat(x);
    auto mean = [](const mx::array &a) { return mx::mean(mx::square(mx::astype(a, mx::float32)), -1, true); };
    auto scale = mx::sqrt(mx::divide(mean(flat(like)), mx::maximum(mean(in), mx::array(least))));
    return mx::astype(mx::multiply(in, scale), in.dtype());
  });
}

bridge_made bridge_xielu(uint64_t owner, bridge_array *x, float positive, float negative, float beta, float eps) {
  return making(owner, [&] {
    auto in = flat(x);
    auto number = [&](float v) { return mx::array(v, in.dtype()); };
    auto line = mx::multiply(number(beta), in);
    auto right = mx::add(mx::multiply(number(positive), mx::square(in)), line);
    auto curve = mx::subtract(mx::expm1(mx::minimum(in, number(eps))), in);
    return mx::where(mx::greater(in, number(0)), right, mx::add(mx::multiply(curve, number(negative)), line));
  });
}

bridge_made bridge_scale_shift(uint64_t owner, bridge_array *x, float scale, float shift) {
  return making(owner, [&] {
    auto out = x->value;
    if (scale != 1) {
      out = mx::multiply(out, mx::array(scale, out.dtype()));
    }
    if (shift != 0) {
      out = mx::add(out, mx::array(shift, out.dtype()));
    }
    return out;
  });
}

// Columns [from, to) of every run.
bridge_made bridge_part(uint64_t owner, bridge_array *x, int32_t run, int32_t from, int32_t to) {
  return making(owner, [&] {
    auto in = flat(x);
    int rows = in.shape(0), runs = in.shape(1) / run;
    if (runs == 1) {
      return mx::slice(in, {0, from}, {rows, to});
    }
    return mx::slice(mx::reshape(in, {rows, runs, run}), {0, 0, from}, {rows, runs, to});
  });
}

static own_kernel &join_kernel() {
  static thread_local own_kernel kernel("join_runs", {"p0", "p1", "p2"}, {"y"}, join_runs_source);
  return kernel;
}

static mx::array join_by_kernel(const std::vector<mx::array> &parts) {
  int rows = parts[0].shape(0), runs[] = {0, 0, 0};
  std::vector<mx::array> in(3, parts[0]); // one that there is not is not read
  for (size_t i = 0; i < parts.size(); i++) {
    in[i] = parts[i];
    runs[i] = parts[i].shape(1) / 8;
  }
  int run = runs[0] + runs[1] + runs[2], blocks = (rows * run + rows_threads - 1) / rows_threads;
  return join_kernel()(in, {mx::Shape{rows, 8 * run}}, {in[0].dtype()}, {blocks * rows_threads, 1, 1}, {rows_threads, 1, 1}, {{"W0", runs[0]}, {"W1", runs[1]}, {"W2", runs[2]}})[0];
}

// Runs of one part of each operand, n in a row.
bridge_made bridge_runs(uint64_t owner, bridge_array **parts, int32_t count, int32_t n) {
  return making(owner, [&] {
    std::vector<mx::array> all;
    int rows = parts[0]->value.shape(0), run = 0;
    bool suits = runs_kernels() && count > 1 && count <= 3;
    int64_t size = 0;
    for (int32_t i = 0; i < count; i++) {
      const auto &in = parts[i]->value;
      int width = static_cast<int>(in.size()) / rows / n;
      run += width;
      size += static_cast<int64_t>(in.size());
      all.push_back(mx::reshape(in, {rows * n, width}));
      suits = suits && in.dtype() == mx::bfloat16 && width % 8 == 0 && size < (int64_t{1} << 31);
    }
    return mx::reshape(suits ? join_by_kernel(all) : mx::concatenate(std::move(all), 1), {rows, n * run});
  });
}

// A number times the sigmoid of its gate.
static std::vector<mx::array> sigmoid_gated(const std::vector<mx::array> &in) { return {mx::astype(mx::multiply(in[0], mx::sigmoid(in[1])), in[0].dtype())}; }

bridge_made bridge_sigmoid_gate(uint64_t owner, bridge_array *x, bridge_array *gate) {
  return making(owner, [&] {
    auto in = flat(x), by = flat(gate);
    if (by.shape(1) == in.shape(1)) {
      return fused<sigmoid_gated>({in, by})[0];
    }
    by = mx::sigmoid(by);
    return mx::astype(by.shape(1) == 1 ? mx::multiply(in, by) : multiply_runs(in, by), in.dtype());
  });
}

// The sum of a number and another one times the sigmoid of its gate, rounded where the
// operations round one by one.
static std::vector<mx::array> sum_with_gated(const std::vector<mx::array> &in) { return {mx::add(in[0], mx::astype(mx::multiply(in[1], mx::sigmoid(in[2])), in[1].dtype()))}; }

bridge_made bridge_add_gated(uint64_t owner, bridge_array *y, bridge_array *x, bridge_array *gate) {
  return making(owner, [&] { return fused<sum_with_gated>({flat(y), flat(x), flat(gate)})[0]; });
}

// Rounded where mlx-lm 0.32.2 rounds (models/activations.py, precise_swiglu).
// A number times the SiLU of its gate, computed in float32.
static std::vector<mx::array> gated(const std::vector<mx::array> &in) {
  auto by = wide(in[1]);
  return {mx::astype(mx::multiply(mx::multiply(by, mx::sigmoid(by)), wide(in[0])), in[0].dtype())};
}

bridge_made bridge_rms_norm_gate(uint64_t owner, bridge_array *x, bridge_array *gate, bridge_array *weight, float eps) {
  return making(owner, [&] {
    auto in = flat(x);
    int rows = in.shape(0), width = weight->value.shape(0);
    auto normed = mx::fast::rms_norm(mx::reshape(in, {rows, in.shape(1) / width, width}), mx::astype(weight->value, in.dtype()), eps);
    return fused<gated>({mx::reshape(normed, in.shape()), flat(gate)})[0];
  });
}

bridge_made bridge_mean(uint64_t owner, bridge_array *x, const int32_t *lengths, int32_t n, const float *mask) {
  return making(owner, [&] {
    auto in = mx::astype(flat(x), mx::float32);
    std::vector<mx::array> means;
    int at = 0;
    for (int32_t i = 0; i < n; at += lengths[i], i++) {
      auto rows = rows_of(in, at, at + lengths[i]);
      float sum = static_cast<float>(lengths[i]);
      if (mask != nullptr) {
        sum = 0;
        for (int32_t r = 0; r < lengths[i]; r++) {
          sum += mask[at + r];
        }
        rows = mx::multiply(rows, mx::array(mask + at, mx::Shape{lengths[i], 1}, mx::float32));
      }
      means.push_back(mx::multiply(mx::sum(rows, 0, true), mx::array(1 / std::max(sum, 1e-9f))));
    }
    return mx::concatenate(std::move(means), 0);
  });
}

bridge_made bridge_unit(uint64_t owner, bridge_array *x) {
  return making(owner, [&] {
    auto in = mx::astype(flat(x), mx::float32);
    auto norm = mx::sqrt(mx::sum(mx::square(in), 1, true));
    auto zero = mx::array(0.0f);
    auto scale = mx::where(mx::greater(norm, zero), mx::divide(mx::array(1.0f), norm), zero);
    return mx::multiply(in, scale);
  });
}

static const mx::array &frequencies_of(const float *periods, int n) {
  std::vector<float> wanted(periods, periods + n);
  if (!self.frequencies || self.periods != wanted) {
    self.frequencies = mx::array(periods, mx::Shape{n}, mx::float32);
    self.periods = std::move(wanted);
  }
  return *self.frequencies;
}

// Every row stands alone with its own offset: [T, heads, 1, head]. So a ragged
// step is one call, and no head is transposed.
bridge_made bridge_rope(uint64_t owner, bridge_array *x, const int32_t *positions, const bridge_rope_spec *spec, const float *periods, const float *growth) {
  return making(owner, [&] {
    int tokens = x->value.shape(0), heads = static_cast<int>(x->value.size()) / tokens / spec->head;
    auto in = mx::reshape(x->value, {tokens, heads, 1, spec->head});
    if (spec->magnitude != 1 && spec->size > 0) { // turning is linear: before is as good as after
      auto m = mx::array(spec->magnitude, in.dtype());
      if (spec->size == spec->head) {
        in = mx::multiply(in, m);
      } else {
        auto turned = mx::slice(in, {0, 0, 0, 0}, {tokens, heads, 1, spec->size});
        auto rest = mx::slice(in, {0, 0, 0, spec->size}, in.shape());
        in = mx::concatenate({mx::multiply(turned, m), rest}, 3);
      }
    }
    std::optional<float> base;
    std::optional<mx::array> freqs;
    if (periods != nullptr) {
      freqs = frequencies_of(periods, spec->size / 2);
    } else {
      base = spec->base;
    }
    auto turn = [&](const mx::array &rows, const mx::array &offsets) {
      return spec->size == 0 ? rows : mx::fast::rope(rows, spec->size, spec->interleaved != 0, base, spec->scale, offsets, freqs);
    };
    auto grown = [&](mx::array turned) { // after the rotation, as mlx-lm rounds it
      if (growth == nullptr) {
        return turned;
      }
      auto factors = mx::array(growth, mx::Shape{tokens, 1, 1, 1}, mx::float32);
      return mx::multiply(turned, mx::astype(factors, turned.dtype()));
    };
    const auto &offsets = list_of({positions, positions + tokens});
    // CUDA's grid has at most 65,535 blocks in the dimension that holds rows.
    const int most = std::max(1, 65535 / ((heads + 3) / 4));
    if (tokens <= most) {
      return grown(turn(in, offsets));
    }
    std::vector<mx::array> parts;
    for (int at = 0; at < tokens; at += most) {
      int end = std::min(tokens, at + most);
      parts.push_back(turn(mx::slice(in, {at, 0, 0, 0}, {end, heads, 1, spec->head}), mx::slice(offsets, {at}, {end})));
    }
    return grown(mx::concatenate(std::move(parts), 0));
  });
}

// As mlx.nn's gelu and gelu_approx, whose constants have the type of their operand.
bridge_made bridge_gelu(uint64_t owner, bridge_array *x, int32_t tanh) {
  return making(owner, [&] {
    auto in = flat(x);
    auto number = [&](float v) { return mx::array(v, in.dtype()); };
    if (tanh) {
      return geglu({in, number(1)})[0];
    }
    auto erf = mx::erf(mx::divide(in, number(1.4142135623730951f)));
    return mx::divide(mx::multiply(in, mx::add(number(1), erf)), number(2));
  });
}

bridge_made bridge_tanh(uint64_t owner, bridge_array *x) {
  return making(owner, [&] { return mx::tanh(flat(x)); });
}

bridge_made bridge_clip(uint64_t owner, bridge_array *x, float low, float high) {
  return making(owner, [&] {
    auto in = flat(x);
    return mx::clip(in, mx::array(low, in.dtype()), mx::array(high, in.dtype()));
  });
}

} // extern "C"

const std::vector<mx::array> *bridge::combined_by_kernel(const mx::array &a) { return runs_kernels() ? combine_kernel().operands(a) : nullptr; }

const std::vector<mx::array> *bridge::joined_by_kernel(const mx::array &a) { return runs_kernels() ? join_kernel().operands(a) : nullptr; }
