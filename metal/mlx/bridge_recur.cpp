//go:build mlx

// Recurrent layers: convolutions and the delta rule, and the states that slabs
// hold for them.
//
// Start reading at bridge_recur.

#include "bridge_internal.h"
#include "bridge_kernel.h"
#include "recur_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "mlx/fast.h"
#include "mlx/ops.h"

using namespace bridge;

namespace {

// The logarithm of what stays of a state, and the part that is written: of
// decay, bias, rate, beta and zero.
std::vector<mx::array> gates_of(const std::vector<mx::array> &in) {
  auto soft = mx::logaddexp(mx::add(wide(in[0]), wide(in[1])), in[4]);
  return {mx::negative(mx::multiply(mx::exp(wide(in[2])), soft)), mx::sigmoid(wide(in[3]))};
}

// The steps of a state space, and the logarithm of what stays of its state: of decay,
// bias, rate, both bounds and zero.
std::vector<mx::array> steps_of(const std::vector<mx::array> &in) {
  auto soft = mx::logaddexp(mx::add(wide(in[0]), wide(in[1])), in[5]);
  auto step = mx::minimum(mx::maximum(soft, in[3]), in[4]);
  return {mx::negative(mx::multiply(mx::exp(wide(in[2])), step)), step};
}

// A convolution, and its last operand in float32: of the rows that meet each tap, and
// as many taps, and what is added, if anything is.
std::vector<mx::array> plain_convolution_of(const std::vector<mx::array> &in) {
  size_t taps = in.size() / 2;
  auto last = wide(in[taps - 1]);
  auto sum = mx::multiply(taps > 1 ? wide(in[0]) : last, in[taps]);
  for (size_t j = 1; j < taps; j++) {
    sum = mx::add(sum, mx::multiply(j + 1 < taps ? wide(in[j]) : last, in[taps + j]));
  }
  return {in.size() % 2 == 0 ? sum : mx::add(sum, wide(in.back())), last};
}

// SiLU of a convolution, and its last operand.
std::vector<mx::array> convolution_of(const std::vector<mx::array> &in) {
  auto both = plain_convolution_of(in);
  return {mx::multiply(both[0], mx::sigmoid(both[0])), both[1]};
}

// What a row writes: of its values, what the state says, decay and beta.
std::vector<mx::array> news_of(const std::vector<mx::array> &in) {
  return {mx::multiply(mx::subtract(in[0], mx::multiply(in[1], mx::exp(in[2]))), in[3])};
}

// The state after a row: of the state, decay, the key and what is written.
std::vector<mx::array> state_of(const std::vector<mx::array> &in) {
  return {mx::add(mx::multiply(in[0], mx::exp(in[1])), mx::multiply(in[2], in[3]))};
}

// One recurrent layer of a step, in float32.
struct recurrence {
  const bridge_state_shape *shape;
  int rule;
  mx::array mixed;       // queries, keys and values of all rows: [T, channels], in their own type
  mx::array decay, beta; // [T, value_heads]; decay is its logarithm, and may be [T, value_heads*key_size]
  mx::array taps;        // [taps, channels]
  std::optional<mx::array> shift, skip;

  int channels() const { return 2 * shape->key_heads * shape->key_size + shape->value_heads * shape->value_size; }
  // Whether columns of a state are forgotten one by one.
  bool by_channel() const { return rule == BRIDGE_DELTA_RULE && decay.shape(1) > shape->value_heads; }

  recurrence(const bridge_recur_operands *in, const bridge_state_shape *of)
      : shape(of), rule(in->rule), mixed(in->q ? mx::concatenate({flat(in->q), flat(in->k), flat(in->v)}, 1) : flat(in->v)), decay(0.0f), beta(0.0f),
        taps(mx::transpose(mx::reshape(wide(flat(in->kernel)), {channels(), of->taps}))) {
    if (in->shift) {
      shift = in->shift->value;
    }
    if (rule == BRIDGE_CONVOLUTION) { // whose gates are never looked at
      decay = beta = mx::zeros({mixed.shape(0), 1}, mx::float32);
      return;
    }
    auto rate = flat(in->rate), by = flat(in->decay), bias = flat(in->bias);
    if (rule == BRIDGE_STATE_SPACE) {
      auto steps = fused<steps_of>({by, bias, rate, mx::array(in->low), mx::array(in->high), mx::array(0.0f)});
      decay = steps[0], beta = steps[1], skip = wide(in->skip->value);
      return;
    }
    if (by.shape(1) > of->value_heads) {
      rate = mx::repeat(rate, of->key_size, 0);
    }
    auto gates = gates_by(by, bias, rate, flat(in->beta));
    decay = gates[0], beta = gates[1];
  }

  static std::vector<mx::array> gates_by(const mx::array &by, const mx::array &bias, const mx::array &rate, const mx::array &takes) {
    return fused<gates_of>({by, bias, rate, takes, mx::array(0.0f)});
  }

  // Of the convolution's result [T, channels]: the heads of queries, keys or
  // values, [T, value_heads, size]; queries and keys of a delta rule have a length of
  // 1, and queries are divided by the root of their size.
  mx::array queries(const mx::array &x) const { return units(x, 0, 1 / static_cast<float>(shape->key_size)); }
  mx::array keys(const mx::array &x) const { return units(x, shape->key_heads * shape->key_size, 1 / std::sqrt(static_cast<float>(shape->key_size))); }
  // The norm's mean is the square of the length by the size, and so is what is
  // added to it.
  mx::array units(const mx::array &x, int from, float scale) const {
    int rows = x.shape(0), width = shape->key_heads * shape->key_size;
    auto all = mx::reshape(mx::slice(x, {0, from}, {rows, from + width}), {rows, shape->key_heads, shape->key_size});
    if (rule == BRIDGE_DELTA_RULE) {
      all = mx::fast::rms_norm(all, mx::broadcast_to(mx::array(scale), {shape->key_size}), 1e-6f / static_cast<float>(shape->key_size));
    }
    int times = shape->value_heads / shape->key_heads;
    return times == 1 ? all : mx::repeat(all, times, 1);
  }
  mx::array values(const mx::array &x) const {
    int rows = x.shape(0), from = 2 * shape->key_heads * shape->key_size;
    return mx::reshape(mx::slice(x, {0, from}, {rows, x.shape(1)}), {rows, shape->value_heads, shape->value_size});
  }
  // What is read of a state [T, value_heads*value_size], and of the values themselves.
  mx::array read(const mx::array &out, const mx::array &x) const {
    if (!skip) {
      return out;
    }
    auto more = mx::multiply(values(x), mx::reshape(*skip, {1, shape->value_heads, 1}));
    return mx::add(out, mx::reshape(more, out.shape()));
  }
};

// Rows that meet each tap and the taps, as convolution_of wants them.
std::vector<mx::array> convolved(const recurrence &r, std::vector<mx::array> rows) {
  for (int j = 0, taps = static_cast<int>(rows.size()); j < taps; j++) {
    rows.push_back(mx::slice(r.taps, {j, 0}, {j + 1, r.channels()}));
  }
  if (r.shift) {
    rows.push_back(*r.shift);
  }
  return r.rule == BRIDGE_CONVOLUTION ? fused<plain_convolution_of>(rows) : fused<convolution_of>(rows);
}

// What is read after rows, and the state then.
struct recurred {
  mx::array out, seen;
  std::optional<mx::array> matrix; // which a convolution alone does not have
};

// What one row of each of n states [n, value_heads, key_size, value_size] writes and
// reads: what is read is [n, value_heads*value_size].
std::pair<mx::array, mx::array> rule_once(const recurrence &r, const mx::array &mixed, const mx::array &decay, const mx::array &beta, const mx::array &matrix) {
  int n = mixed.shape(0), heads = r.shape->value_heads, k = r.shape->key_size, v = r.shape->value_size;
  auto key = r.keys(mixed), values = mx::reshape(r.values(mixed), {n, heads, 1, v}), takes = mx::reshape(beta, {n, heads, 1, 1});
  auto past = mx::reshape(decay, {n, heads, r.by_channel() ? k : 1, 1});
  auto news = [&] {
    if (r.rule == BRIDGE_STATE_SPACE) {
      return mx::multiply(values, takes);
    }
    auto row = mx::reshape(key, {n, heads, 1, k});
    if (!r.by_channel()) {
      return fused<news_of>({values, mx::matmul(row, matrix), past, takes})[0];
    }
    auto said = mx::matmul(mx::multiply(row, mx::exp(mx::swapaxes(past, -1, -2))), matrix);
    return mx::multiply(mx::subtract(values, said), takes);
  }();
  auto state = fused<state_of>({matrix, past, mx::reshape(key, {n, heads, k, 1}), news})[0];
  auto out = mx::matmul(mx::reshape(r.queries(mixed), {n, heads, 1, k}), state);
  return {r.read(mx::reshape(out, {n, heads * v}), mixed), state};
}

// One row of each of n states: out is [n, value_heads*value_size].
recurred recur_once(const recurrence &r, const mx::array &rows, const mx::array &decay, const mx::array &beta, const mx::array &seen, const std::optional<mx::array> &matrix) {
  int n = rows.shape(0), width = r.channels(), before = r.shape->taps - 1;
  std::vector<mx::array> meet;
  for (int j = 0; j < before; j++) {
    meet.push_back(mx::squeeze(mx::slice(seen, {0, 0, j, 0}, {n, 1, j + 1, width}), {1, 2}));
  }
  meet.push_back(rows);
  auto both = convolved(r, meet);
  auto last = before == 0 ? seen : mx::concatenate({mx::slice(seen, {0, 0, 1, 0}, seen.shape()), mx::reshape(both[1], {n, 1, 1, width})}, 2);
  if (!matrix) {
    return {both[0], last, matrix};
  }
  auto [out, state] = rule_once(r, both[0], decay, beta, *matrix);
  return {out, last, state};
}

// Rows of a sequence are computed in blocks of this many: what they write depends
// on one another through a triangle of products of keys, which is solved first.
constexpr int rows_at_once = 64;
// As many where columns of a state are forgotten one by one: the products of keys are
// then written out for each element of a key.
constexpr int rows_by_channel = 16;

// A square of ones and zeros.
template <class F> mx::array square(int size, F &&one) {
  std::vector<float> values;
  for (int row = 0; row < size; row++) {
    for (int column = 0; column < size; column++) {
      values.push_back(one(row, column) ? 1.0f : 0.0f);
    }
  }
  return mx::array(values.data(), {size, size}, mx::float32);
}

// The inverse of I + a, where a is strictly lower triangular. Those of
// blocks of 1, 2, 4 and so on are joined two by two.
mx::array inverse(const mx::array &a, int size) {
  auto joins = [&](int block) {
    return mx::multiply(a, square(size, [&](int row, int column) { return row / block % 2 == 1 && column / block == row / block - 1; }));
  };
  auto out = mx::eye(size, size, 0, mx::float32);
  for (int block = 1; block < size; block *= 2) {
    out = mx::subtract(out, mx::matmul(mx::matmul(out, joins(block)), out));
  }
  return out;
}

// Rows of a sequence by blocks: [heads, blocks, size, width], filled up with
// zeros, which change nothing.
mx::array in_blocks(const mx::array &x, int blocks, int size) {
  auto by_head = mx::transpose(x, {1, 0, 2});
  if (int missing = blocks * size - x.shape(0); missing > 0) {
    by_head = mx::pad(by_head, {1}, mx::Shape{0}, mx::Shape{missing}, mx::array(0.0f));
  }
  return mx::reshape(by_head, {x.shape(1), blocks, size, x.shape(2)});
}

// The products of rows of a with those of b [heads, blocks, size, key_size] that do not
// come after them, each element by what is left of it meanwhile: [..., size, size].
// past is [..., size, 1], or [..., size, key_size].
mx::array products(const mx::array &a, const mx::array &b, const mx::array &past, int size) {
  auto lower = mx::greater(square(size, [](int row, int column) { return column <= row; }), mx::array(0.5f));
  auto never = mx::array(-std::numeric_limits<float>::infinity());
  if (past.shape(-1) == 1) {
    auto between = mx::exp(mx::where(lower, mx::subtract(past, mx::swapaxes(past, -1, -2)), never));
    return mx::multiply(mx::matmul(a, mx::swapaxes(b, -1, -2)), between);
  }
  auto between = mx::exp(mx::where(mx::expand_dims(lower, -1), mx::subtract(mx::expand_dims(past, -2), mx::expand_dims(past, -3)), never));
  return mx::sum(mx::multiply(mx::multiply(mx::expand_dims(a, -2), mx::expand_dims(b, -3)), between), -1);
}

// All rows of one sequence [T, channels] through the rule, and the state [heads,
// key_size, value_size] then: out is [T, value_heads*value_size]. Within a block, what
// each row writes is solved for at once (Yang et al.,
// https://arxiv.org/abs/2412.06464); blocks follow one another.
std::pair<mx::array, mx::array> rule_of(const recurrence &r, const mx::array &mixed, const mx::array &decay, const mx::array &beta, mx::array state) {
  int rows = mixed.shape(0), heads = r.shape->value_heads, size = 1, channels = r.by_channel() ? r.shape->key_size : 1;
  while (size < rows && size < (channels > 1 ? rows_by_channel : rows_at_once)) {
    size *= 2;
  }
  int blocks = (rows + size - 1) / size;
  auto blocked = [&](const mx::array &x) { return in_blocks(x, blocks, size); };
  auto q = blocked(r.queries(mixed)), k = blocked(r.keys(mixed)), v = blocked(r.values(mixed));
  auto takes = blocked(mx::expand_dims(beta, -1));
  auto past = mx::cumsum(blocked(mx::reshape(decay, {rows, heads, channels})), 2); // [heads, blocks, size, 1 or key_size]
  auto since = mx::exp(past), wanted = mx::multiply(takes, v), said = wanted;
  if (r.rule == BRIDGE_DELTA_RULE) {
    auto strictly_lower = square(size, [](int row, int column) { return column < row; });
    auto solved = inverse(mx::multiply(mx::multiply(takes, products(k, k, past, size)), strictly_lower), size);
    wanted = mx::matmul(solved, wanted), said = mx::matmul(solved, mx::multiply(mx::multiply(takes, since), k));
  }
  auto scores = products(q, k, past, size);
  auto asked = mx::multiply(q, since);
  auto end = mx::slice(past, {0, 0, size - 1, 0}, {heads, blocks, size, channels});
  auto left = mx::swapaxes(mx::multiply(k, mx::exp(mx::subtract(end, past))), -1, -2);
  auto stays = mx::swapaxes(mx::exp(end), -1, -2);
  std::vector<mx::array> outs;
  for (int b = 0; b < blocks; b++) {
    auto of = [&](const mx::array &x) { return mx::reshape(mx::slice(x, {0, b, 0, 0}, {heads, b + 1, x.shape(2), x.shape(3)}), {heads, x.shape(2), x.shape(3)}); };
    auto news = of(wanted);
    if (r.rule == BRIDGE_DELTA_RULE) {
      news = mx::subtract(news, mx::matmul(of(said), state));
    }
    outs.push_back(mx::add(mx::matmul(of(asked), state), mx::matmul(of(scores), news)));
    state = mx::add(mx::multiply(state, of(stays)), mx::matmul(of(left), news));
  }
  auto out = blocks == 1 ? outs[0] : mx::concatenate(std::move(outs), 1);
  out = mx::transpose(mx::slice(out, {0, 0, 0}, {heads, rows, r.shape->value_size}), {1, 0, 2});
  return {r.read(mx::reshape(out, {rows, heads * r.shape->value_size}), mixed), state};
}

// All rows of one sequence, whose state is [1, ...].
recurred recur_all(const recurrence &r, const mx::array &rows, const mx::array &decay, const mx::array &beta, const mx::array &seen, const std::optional<mx::array> &matrix) {
  int n = rows.shape(0), width = r.channels(), taps = r.shape->taps;
  auto window = mx::concatenate({mx::reshape(seen, {taps - 1, width}), wide(rows)}, 0);
  std::vector<mx::array> meet;
  for (int j = 0; j < taps; j++) {
    meet.push_back(rows_of(window, j, j + n));
  }
  auto mixed = convolved(r, meet)[0];
  auto last = mx::contiguous(mx::reshape(rows_of(window, n, n + taps - 1), {1, 1, taps - 1, width}));
  if (!matrix) {
    return {mixed, last, matrix};
  }
  auto [out, after] = rule_of(r, mixed, decay, beta, mx::reshape(*matrix, {matrix->shape(1), matrix->shape(2), matrix->shape(3)}));
  return {out, last, mx::reshape(after, matrix->shape())};
}

// A host array of the bytes at src; src moves to the byte after them.
mx::array from_host(mx::Dtype type, mx::Shape shape, const uint8_t *&src) {
  void *memory = nullptr;
  auto out = host_array(type, std::move(shape), &memory);
  std::memcpy(memory, src, out.nbytes());
  src += out.nbytes();
  return out;
}

// Segments of one row each, of one slab.
struct single {
  std::vector<int32_t> rows, slots;
};

// Some slots of what is held, in the order of a list.
mx::array slots_at(const mx::array &a, const std::vector<int32_t> &slots) {
  bool all = static_cast<int>(slots.size()) == a.shape(0);
  for (size_t i = 0; i < slots.size() && all; i++) {
    all = slots[i] == static_cast<int32_t>(i);
  }
  return all ? a : mx::take(a, list_of(slots), 0);
}

// The matrices of some slots, if the layer has any.
std::optional<mx::array> matrices(const slab_layer &held, const std::vector<int32_t> &slots) {
  if (!held.values) {
    return std::nullopt;
  }
  return slots.size() == 1 ? slots_of(held.values->value, slots[0], slots[0] + 1) : slots_at(held.values->value, slots);
}

// Writes slots back.
void put_slots(std::optional<slab_array> &held, mx::array fresh, const std::vector<int32_t> &slots) {
  if (static_cast<int>(slots.size()) == held->value.shape(0)) {
    held = {std::move(fresh)};
    return;
  }
  auto shape = fresh.shape();
  shape.insert(shape.begin() + 1, 1);
  held = {mx::scatter(in_place(*held), {list_of(slots)}, mx::reshape(std::move(fresh), shape), {0}), true};
}

// The rows of one slab, in the order of its slots.
single in_slots(const bridge_segment *segments, int32_t n, const bridge_slab *slab) {
  std::map<int32_t, int32_t> found;
  int row = 0;
  for (int32_t i = 0; i < n; row += segments[i].length, i++) {
    if (segments[i].slab == slab && segments[i].length == 1) {
      found[segments[i].slot] = row;
    }
  }
  single out;
  for (auto [slot, at] : found) {
    out.slots.push_back(slot);
    out.rows.push_back(at);
  }
  return out;
}

// Rows of x in the order of a list.
mx::array rows_at(const mx::array &x, const std::vector<int32_t> &rows) {
  bool follow = true;
  for (size_t i = 0; i < rows.size(); i++) {
    follow = follow && rows[i] == rows[0] + static_cast<int32_t>(i);
  }
  return follow ? rows_of(x, rows[0], rows[0] + static_cast<int32_t>(rows.size())) : mx::take(x, list_of(rows), 0);
}

// What one step reads, in any order of its rows.
struct scattered {
  std::vector<mx::array> parts;
  std::vector<int32_t> order; // row of the step that stands in each row of the parts

  // Rows that follow one another.
  void add(int32_t row, mx::array part) {
    for (int32_t j = 0; j < part.shape(0); j++) {
      order.push_back(row + j);
    }
    parts.push_back(std::move(part));
  }
  mx::array joined() {
    auto all = parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 0);
    if (std::is_sorted(order.begin(), order.end())) {
      return all;
    }
    std::vector<int32_t> back(order.size());
    for (size_t i = 0; i < order.size(); i++) {
      back[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
    }
    return mx::take(all, list_of(back), 0);
  }
};

// The rows of a segment with drafts, from row on: first those before the drafts, after
// which the state is kept.
mx::array drafted(const recurrence &r, const bridge_segment &seg, size_t layer, int row) {
  auto &held = seg.slab->layers.at(layer), &kept = seg.kept->layers.at(layer);
  auto rows = [&](int from, int to, const mx::array &seen, const std::optional<mx::array> &matrix) {
    auto of = [&](const mx::array &x) { return rows_of(x, row + from, row + to); };
    return (to - from > 1 ? recur_all : recur_once)(r, of(r.mixed), of(r.decay), of(r.beta), seen, matrix);
  };
  auto known = rows(0, seg.length - seg.draft, slots_of(held.keys->value, seg.slot, seg.slot + 1), matrices(held, {seg.slot}));
  auto after = rows(seg.length - seg.draft, seg.length, known.seen, known.matrix);
  put_slots(kept.keys, known.seen, {seg.kept_slot});
  put_slots(held.keys, after.seen, {seg.slot});
  if (known.matrix) {
    put_slots(kept.values, *known.matrix, {seg.kept_slot});
    put_slots(held.values, *after.matrix, {seg.slot});
  }
  return mx::concatenate({known.out, after.out}, 0);
}

// Whether recur_step.h has a kernel for a step: of one row of each state.
bool suits_step(const bridge_recur_operands *in, const bridge_state_shape *of, const bridge_segment *segments, int32_t n) {
  return runs_kernels() && in->rule != BRIDGE_CONVOLUTION && flat(in->decay).shape(1) == of->value_heads && of->taps > 1 && of->key_size % 32 == 0 && of->key_size <= 256 &&
         of->value_size % 16 == 0 && of->value_size <= 256 && std::all_of(segments, segments + n, [](const bridge_segment &s) { return s.length == 1; });
}

// The rows of one slab by the kernel.
mx::array step_by_kernel(const bridge_recur_operands *in, const bridge_state_shape *of, slab_layer &held, const single &ones) {
  static thread_local own_kernel kernel(
      "recur_step", {"q", "k", "v", "decay", "beta", "kernel", "shift", "rate", "bias", "skip", "seen", "state"}, {"y", "after", "next"}, recur_step_source, "", false);
  auto rows = [&](const bridge_array *x) { return rows_at(flat(x), ones.rows); };
  auto given = [&](const bridge_array *x) { return flat(x == nullptr ? in->bias : x); };
  auto seen = slots_at(held.keys->value, ones.slots), state = *matrices(held, ones.slots);
  int n = static_cast<int>(ones.rows.size());
  own_kernel::constants how{
      {"KEY_HEADS", of->key_heads}, {"KEY_SIZE", of->key_size}, {"VALUE_HEADS", of->value_heads}, {"VALUE_SIZE", of->value_size}, {"TAPS", of->taps}, {"SPACE", in->rule == BRIDGE_STATE_SPACE},
      {"SHIFTED", in->shift != nullptr}, {"LOW", std::bit_cast<int>(in->low)}, {"HIGH", std::bit_cast<int>(in->high)}};
  int threads = recur_step_parts * of->value_size;
  auto out = kernel({rows(in->q), rows(in->k), rows(in->v), rows(in->decay), rows(in->beta == nullptr ? in->decay : in->beta), given(in->kernel), given(in->shift), given(in->rate), given(in->bias), given(in->skip), seen, state},
                    {mx::Shape{n, of->value_heads * of->value_size}, seen.shape(), state.shape()}, {in->v->value.dtype(), mx::float32, mx::float32}, {of->value_heads * threads, n, 1}, {threads, 1, 1}, how);
  put_slots(held.keys, out[1], ones.slots);
  put_slots(held.values, out[2], ones.slots);
  return out[0];
}

} // namespace

extern "C" {

bridge_status bridge_state_join(uint64_t owner, bridge_slab *to, const bridge_state_shape *shape) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    int channels = 2 * shape->key_heads * shape->key_size + shape->value_heads * shape->value_size;
    rearrange({to}, [&](size_t i) {
      append_slot(to->layers[i].keys, mx::zeros({1, 1, shape->taps - 1, channels}, mx::float32), 0);
      if (shape->key_size > 0) {
        append_slot(to->layers[i].values, mx::zeros({1, shape->value_heads, shape->key_size, shape->value_size}, mx::float32), 0);
      }
    });
  });
}

bridge_status bridge_state_save(uint64_t owner, bridge_slab *slab, int32_t slot, uint8_t *dst) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { copy_slot(*slab, slot, 0, -1, dst); });
}

bridge_status bridge_state_put(uint64_t owner, bridge_slab *slab, int32_t slot, const uint8_t *src) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    put_layers(*slab, [&](std::optional<slab_array> &held) {
      auto one = held->value.shape();
      one[0] = 1;
      put_slots(held, from_host(mx::float32, std::move(one), src), {slot});
    });
  });
}

bridge_made bridge_recur(uint64_t owner, const bridge_recur_operands *in, int32_t layer, const bridge_state_shape *shape, const bridge_segment *segments, int32_t n) {
  return making(owner, [&] {
    scattered out;
    auto at = static_cast<size_t>(layer);
    std::map<bridge_slab *, bool> done;
    if (suits_step(in, shape, segments, n)) {
      for (int32_t i = 0; i < n; i++) {
        if (!std::exchange(done[segments[i].slab], true)) {
          auto ones = in_slots(segments, n, segments[i].slab);
          out.parts.push_back(step_by_kernel(in, shape, segments[i].slab->layers.at(at), ones));
          out.order.insert(out.order.end(), ones.rows.begin(), ones.rows.end());
        }
      }
      return out.joined();
    }
    recurrence r(in, shape);
    int row = 0;
    for (int32_t i = 0; i < n; row += segments[i].length, i++) {
      const auto &seg = segments[i];
      auto &held = seg.slab->layers.at(at);
      if (seg.draft > 0) {
        out.add(row, drafted(r, seg, at, row));
      } else if (seg.length > 1) {
        auto of = [&](const mx::array &x) { return rows_of(x, row, row + seg.length); };
        auto one = recur_all(r, of(r.mixed), of(r.decay), of(r.beta), slots_of(held.keys->value, seg.slot, seg.slot + 1), matrices(held, {seg.slot}));
        put_slots(held.keys, one.seen, {seg.slot});
        if (one.matrix) {
          put_slots(held.values, *one.matrix, {seg.slot});
        }
        out.add(row, one.out);
      } else if (!std::exchange(done[seg.slab], true)) {
        auto ones = in_slots(segments, n, seg.slab);
        auto of = [&](const mx::array &x) { return rows_at(x, ones.rows); };
        auto all = recur_once(r, of(r.mixed), of(r.decay), of(r.beta), slots_at(held.keys->value, ones.slots), matrices(held, ones.slots));
        put_slots(held.keys, all.seen, ones.slots);
        if (all.matrix) {
          put_slots(held.values, *all.matrix, ones.slots);
        }
        out.parts.push_back(all.out);
        out.order.insert(out.order.end(), ones.rows.begin(), ones.rows.end());
      }
    }
    return mx::astype(out.joined(), in->v->value.dtype());
  });
}

} // extern "C"
