//go:build mlx

// Attention of a step's segments to what slabs hold of them, and of encoders.
//
// Start reading at bridge_attend.

#include "bridge_internal.h"
#include "bridge_kernel.h"
#include "few_rows.h"
#include "ragged.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"

using namespace bridge;

namespace {

// Rows [from, from+length) of x as [1, heads, length, size].
mx::array by_head(const mx::array &x, int from, int length, int heads, int size) {
  auto rows = rows_of(x, from, from + length);
  if (length == 1) {
    return mx::reshape(rows, {1, heads, 1, size});
  }
  if (rows.ndim() == 4) {
    return mx::transpose(rows, {2, 1, 0, 3});
  }
  return mx::transpose(mx::reshape(rows, {1, length, heads, size}), {0, 2, 1, 3});
}

// What one attention has in common with the others of its step.
struct attention {
  const bridge_attend_spec *spec;
  std::optional<mx::array> sinks;
  const int32_t *runs;
  // The operands of the indexer.
  std::optional<mx::array> index_q, index_weights;

  // Keys of tokens [first, end) of slots [from, to), and their values.
  mx::array keys(const slab_layer &held, int from, int to, int first, int end) const {
    return mx::slice(held.keys->value, {from, 0, first, 0}, {to, spec->kv_heads, end, spec->size});
  }
  mx::array values(const slab_layer &held, int from, int to, int first, int end) const {
    return mx::slice((held.values ? held.values : held.keys)->value, {from, 0, first, 0}, {to, spec->kv_heads, end, spec->value_size});
  }

  int first_seen(int position) const { return first_seen_from(*spec, position); }
};

// A mask that every layer of a step shares.
template <class F> const mx::array &mask_by(std::vector<int32_t> key, F &&make) {
  auto found = self.masks.find(key);
  if (found == self.masks.end()) {
    found = self.masks.emplace(std::move(key), make()).first;
  }
  return found->second;
}

// What queries at [start, end) may see of tokens [first, end): [end-start,
// end-first].
const mx::array &mask_of_piece(const attention &a, int start, int first, int end) {
  int window = a.spec->window;
  return mask_by({-1, start, first, end, window}, [&] { // no position is -1
    auto row = mx::expand_dims(mx::arange(start, end), 1), column = mx::expand_dims(mx::arange(first, end), 0);
    auto mask = mx::greater_equal(row, column);
    return window > 0 ? mx::logical_and(mask, mx::less(mx::subtract(row, column), mx::array(window))) : mask;
  });
}

// mask_of_piece of a segment with runs, whose tokens see one another as well.
const mx::array &mask_of_runs(const attention &a, const bridge_segment &seg, int first, int end) {
  int window = a.spec->window;
  const int32_t *runs = a.runs + 2 * seg.first_run;
  std::vector<int32_t> key{-2, seg.start, first, end, window};
  key.insert(key.end(), runs, runs + 2 * seg.runs);
  return mask_by(std::move(key), [&] {
    auto row = mx::expand_dims(mx::arange(seg.start, end), 1), column = mx::expand_dims(mx::arange(first, end), 0);
    auto mask = mx::greater_equal(row, column);
    for (int32_t i = 0; i < seg.runs; i++) {
      auto from = mx::array(runs[2 * i]), to = mx::array(runs[2 * i + 1]);
      auto in = [&](const mx::array &at) { return mx::logical_and(mx::greater_equal(at, from), mx::less(at, to)); };
      mask = mx::logical_or(mask, mx::logical_and(in(row), in(column)));
    }
    return window > 0 ? mx::logical_and(mask, mx::less(mx::subtract(row, column), mx::array(window))) : mask;
  });
}

// Whether ragged.h has a kernel for keys of a type and size.
bool has_ragged(mx::Dtype type, int size) { return runs_kernels() && type == mx::bfloat16 && (size == 64 || size == 128); }

// Segments of slabs, whose keys and values come in pairs, by the kernel of
// ragged.h: [rows, heads*size].
mx::array multiply_ragged(const mx::array &q, const std::vector<mx::array> &slabs, const mx::array &list, int tiles, int rows, int heads) {
  static thread_local own_kernel kernel("ragged", {"q", "tiles", "k0", "v0", "k1", "v1", "k2", "v2", "k3", "v3"}, {"y"}, ragged_source,
                                                                std::string(few_rows_product) + ragged_rounding + ragged_numbers);
  std::vector<mx::array> in{q, list};
  for (size_t i = 0; i < 2 * ragged_slabs; i++) { // those that there are not are not read
    in.push_back(slabs[i < slabs.size() ? i : i % 2]);
  }
  int kv_heads = slabs[0].shape(1), size = slabs[0].shape(3);
  return kernel(in, {mx::Shape{rows, heads * size}}, {q.dtype()}, {tiles * ragged_threads, kv_heads, 1}, {ragged_threads, 1, 1}, {{"SIZE", size}})[0];
}

// Compiles the kernel, some seconds, which would otherwise be a pause in the
// middle of an answer.
void compile_ragged(int size) {
  static thread_local std::set<int> done;
  if (!done.insert(size).second) {
    return;
  }
  auto nothing = mx::zeros({1, 1, 1, size}, mx::bfloat16);
  auto list = ragged_list(1, 1, 1, {{0, 0, 1, 0, 1, 0, 0}});
  mx::eval({multiply_ragged(nothing, {nothing, nothing}, mx::array(list.data(), mx::Shape{static_cast<int>(list.size())}, mx::int32), ragged_tiles(list), 1, 1)});
}

// Attention of a piece by products and a softmax, where the framework's own
// kernel would be planned again for every length: heads that share keys are rows
// of one product.
mx::array attend_by_products(const attention &a, const mx::array &q, const mx::array &k, const mx::array &v, const mx::array &mask) {
  const auto *spec = a.spec;
  int length = q.shape(2), keys = k.shape(2), group = spec->heads / spec->kv_heads;
  auto rows = mx::reshape(mx::multiply(q, mx::array(spec->scale, q.dtype())), {spec->kv_heads, group * length, q.shape(3)});
  auto scores = mx::matmul(rows, mx::swapaxes(mx::squeeze(k, 0), 1, 2));
  scores = mx::reshape(scores, {spec->kv_heads, group, length, keys});
  if (spec->cap > 0) {
    auto cap = mx::array(spec->cap, scores.dtype());
    scores = mx::multiply(mx::tanh(mx::divide(scores, cap)), cap);
  }
  scores = mx::where(mask, scores, mx::array(-std::numeric_limits<float>::infinity(), scores.dtype()));
  if (a.sinks) {
    auto sinks = mx::broadcast_to(mx::reshape(mx::astype(*a.sinks, scores.dtype()), {spec->kv_heads, group, 1, 1}), {spec->kv_heads, group, length, 1});
    scores = mx::softmax(mx::concatenate({sinks, scores}, 3), 3, true);
    scores = mx::slice(scores, {0, 0, 0, 1}, {spec->kv_heads, group, length, keys + 1});
  } else {
    scores = mx::softmax(scores, 3, true);
  }
  auto out = mx::matmul(mx::reshape(scores, {spec->kv_heads, group * length, keys}), mx::squeeze(v, 0));
  return mx::reshape(out, {1, spec->heads, length, spec->value_size});
}

// One segment's queries against what its slot holds: [length, heads*size].
mx::array attend_alone(const attention &a, const mx::array &q, const bridge_segment &seg) {
  const auto *spec = a.spec;
  int end = seg.start + seg.length, first = std::max(a.first_seen(seg.start), seg.first);
  auto &held = seg.slab->layers.at(static_cast<size_t>(spec->layer));
  auto keys = a.keys(held, seg.slot, seg.slot + 1, first, end), values = a.values(held, seg.slot, seg.slot + 1, first, end);
  auto attend = [&] {
    if (seg.how == BRIDGE_PRODUCTS) {
      return attend_by_products(a, q, keys, values, seg.runs > 0 ? mask_of_runs(a, seg, first, end) : mask_of_piece(a, seg.start, first, end));
    }
    std::string mode = seg.length > 1 ? "causal" : "";
    std::optional<mx::array> mask;
    if (seg.runs > 0) {
      mask = mask_of_runs(a, seg, first, end);
      mode = "array";
    } else if (seg.length > 1 && spec->window > 0 && end - first > spec->window) {
      mask = mask_of_piece(a, seg.start, first, end);
      mode = "array";
    }
    return mx::fast::scaled_dot_product_attention(q, keys, values, spec->scale, mode, mask, a.sinks);
  };
  auto out = attend();
  if (seg.length > 1) {
    out = mx::transpose(out, {0, 2, 1, 3});
  }
  return mx::reshape(out, {seg.length, spec->heads * spec->value_size});
}

// The indexer's scores of tokens, whose keys are [size, tokens], for rows of the
// step from row on: [rows, tokens]. Heads are added up one by one, so that the
// scores of a single one exist at a time.
mx::array index_scores(const attention &a, const mx::array &keys, int row, int rows) {
  int heads = a.spec->index_heads, size = a.spec->index_size;
  auto q = mx::reshape(rows_of(*a.index_q, row, row + rows), {rows, heads, size});
  auto weights = mx::reshape(rows_of(*a.index_weights, row, row + rows), {rows, heads});
  auto zero = mx::array(0, q.dtype());
  if (rows == 1) {
    return mx::matmul(weights, mx::maximum(mx::matmul(mx::squeeze(q, 0), keys), zero));
  }
  std::optional<mx::array> sum;
  for (int h = 0; h < heads; h++) {
    auto of = mx::squeeze(mx::slice(q, {0, h, 0}, {rows, h + 1, size}), 1);
    auto part = mx::multiply(mx::maximum(mx::matmul(of, keys), zero), mx::slice(weights, {0, h}, {rows, h + 1}));
    sum = sum ? mx::add(*sum, part) : part;
  }
  return *sum;
}

// One segment's queries, rows of the step from row on, against the tokens that the
// indexer selects: [length, heads*size].
mx::array attend_indexed(const attention &a, const bridge_segment &seg, const mx::array &step, int row) {
  const auto *spec = a.spec;
  int end = seg.start + seg.length, size = spec->size - spec->index_size;
  auto q = by_head(step, row, seg.length, spec->heads, size);
  auto &held = seg.slab->layers.at(static_cast<size_t>(spec->layer));
  auto stored = a.keys(held, seg.slot, seg.slot + 1, 0, end), values = a.values(held, seg.slot, seg.slot + 1, 0, end);
  auto keys = mx::slice(stored, {0, 0, 0, 0}, {1, 1, end, size});
  std::optional<mx::array> mask, selected;
  if (seg.length > 1) {
    mask = mask_of_piece(a, seg.start, 0, end);
  }
  if (end > spec->index_topk) {
    auto tail = mx::reshape(mx::slice(stored, {0, 0, 0, size}, {1, 1, end, spec->size}), {end, spec->index_size});
    auto scores = index_scores(a, mx::swapaxes(tail, 0, 1), row, seg.length);
    if (mask) {
      scores = mx::where(*mask, scores, mx::array(-std::numeric_limits<float>::infinity(), scores.dtype()));
    }
    int first = end - spec->index_topk;
    selected = mx::slice(mx::argpartition(scores, first, -1), {0, first}, {seg.length, end});
  }
  if (!mask) { // one token: what it selects is gathered
    if (selected) {
      auto places = mx::reshape(*selected, {spec->index_topk});
      keys = mx::take(keys, places, 2);
      values = mx::take(values, places, 2);
    }
    auto out = mx::fast::scaled_dot_product_attention(q, keys, values, spec->scale, "", std::nullopt, a.sinks);
    return mx::reshape(out, {1, spec->heads * spec->value_size});
  }
  if (selected) {
    auto none = mx::zeros({seg.length, end}, mx::bool_);
    mask = mx::logical_and(*mask, mx::put_along_axis(none, *selected, mx::broadcast_to(mx::array(true), selected->shape()), -1));
  }
  auto out = mx::transpose(attend_by_products(a, q, keys, values, *mask), {0, 2, 1, 3});
  return mx::reshape(out, {seg.length, spec->heads * spec->value_size});
}

// Segments of one token each of one slab: row r of the step is in slot s at
// position p; -1 where a slot has none. They are attended by one call from the
// first slot that has a row to the last: a slot between them that has none asks
// what another one asks, of a token it may see, and is not answered.
struct together {
  bridge_slab *slab;
  std::vector<int32_t> rows, positions; // by slot, from the first
  int first, present;
  bool ragged; // which are attended with others of the step

  std::vector<int32_t> asking() const {
    auto out = rows;
    std::replace(out.begin(), out.end(), -1, rows[0]);
    return out;
  }
  // Slots, counted in the slab, their rows and positions, of those that have one.
  std::vector<int32_t> slots() const {
    std::vector<int32_t> out;
    for (size_t s = 0; s < rows.size(); s++) {
      if (rows[s] >= 0) {
        out.push_back(first + static_cast<int32_t>(s));
      }
    }
    return out;
  }
  std::vector<int32_t> of_slots(const std::vector<int32_t> &all) const {
    std::vector<int32_t> out;
    for (auto s : slots()) {
      out.push_back(all[static_cast<size_t>(s - first)]);
    }
    return out;
  }
};

// Rows of x: [rows, heads, 1, size].
mx::array by_slot(const mx::array &x, const std::vector<int32_t> &rows, int heads, int size) {
  int n = static_cast<int>(rows.size());
  bool follow = true;
  for (int i = 0; i < n; i++) {
    follow = follow && rows[i] == rows[0] + i;
  }
  auto taken = follow ? rows_of(x, rows[0], rows[0] + n) : mx::take(x, list_of(rows), 0);
  return mx::reshape(taken, {n, heads, 1, size});
}

// Writes rows [rows, heads, 1, size], each into a slot at a position.
void place_rows(std::optional<slab_array> &held, const mx::array &rows, const std::vector<int32_t> &slots, const std::vector<int32_t> &positions) {
  auto updates = mx::reshape(mx::astype(rows, held->value.dtype()), {rows.shape(0), 1, rows.shape(1), 1, rows.shape(3)});
  held = {mx::scatter(in_place(*held), {list_of(slots), list_of(positions)}, updates, {0, 2}), true};
}

// Writes one token into each slot that has a row, each at its own position.
void place_all(std::optional<slab_array> &held, const mx::array &fresh, const together &t) {
  auto positions = t.of_slots(t.positions);
  bool level = std::all_of(positions.begin(), positions.end(), [&](int32_t p) { return p == positions[0]; });
  if (level && positions.size() == t.rows.size()) {
    place(held, fresh, t.first, positions[0]);
    return;
  }
  place_rows(held, fresh, t.slots(), positions);
}

// What each slot may see of tokens [first, end): [slots, 1, 1, end-first].
const mx::array &mask_of(const attention &a, const std::vector<int32_t> &positions, int first, int end) {
  auto key = positions;
  key.insert(key.end(), {a.spec->window, first, end});
  return mask_by(std::move(key), [&] {
    auto at = mx::reshape(list_of(positions), {static_cast<int>(positions.size()), 1, 1, 1});
    auto token = mx::reshape(mx::arange(first, end), {1, 1, 1, end - first});
    auto mask = mx::less_equal(token, at);
    return a.spec->window > 0 ? mx::logical_and(mask, mx::greater(token, mx::subtract(at, mx::array(a.spec->window)))) : mask;
  });
}

// Above this many tokens, rows of different lengths are attended one by one: a
// mask would read what the shorter ones do not have. Measured on an H100, 8
// rows of 8k: 543 us under a mask, 322 us one by one.
constexpr int longest_masked = 1024;

// One token of every slot that has a row against what it holds, in their order:
// [slots, heads*size].
mx::array attend_together(const attention &a, const mx::array &q, const together &t) {
  const auto *spec = a.spec;
  auto &held = t.slab->layers.at(static_cast<size_t>(spec->layer));
  int n = static_cast<int>(t.positions.size());
  auto positions = t.of_slots(t.positions);
  auto [low, high] = std::minmax_element(positions.begin(), positions.end());
  int first = a.first_seen(*low), end = *high + 1;
  if (*low != *high && end - first > longest_masked) {
    std::vector<mx::array> parts;
    for (auto s : t.slots()) {
      parts.push_back(attend_alone(a, by_slot(q, {t.rows[static_cast<size_t>(s - t.first)]}, spec->heads, spec->size), {t.slab, s, t.positions[static_cast<size_t>(s - t.first)], 1, BRIDGE_FUSED, 0, 0, 0}));
    }
    return mx::concatenate(std::move(parts), 0);
  }
  std::optional<mx::array> mask;
  if (*low != *high) {
    auto all = t.positions;
    std::replace(all.begin(), all.end(), -1, *low);
    mask = mask_of(a, all, first, end);
  }
  auto out = mx::fast::scaled_dot_product_attention(by_slot(q, t.asking(), spec->heads, spec->size), a.keys(held, t.first, t.first + n, first, end),
                                                    a.values(held, t.first, t.first + n, first, end), spec->scale, mask ? "array" : "", mask, a.sinks);
  out = mx::reshape(out, {n, spec->heads * spec->value_size});
  if (t.present == n) {
    return out;
  }
  auto answered = t.slots();
  for (auto &s : answered) {
    s -= t.first;
  }
  return mx::take(out, list_of(answered), 0);
}

// Slabs in which several slots have just one token in this step, and at least
// every second one between them does.
std::map<bridge_slab *, together> gather(const bridge_segment *segments, int32_t n) {
  std::map<bridge_slab *, std::map<int32_t, std::pair<int32_t, int32_t>>> found; // by slot: row, position
  std::set<bridge_slab *> ragged;
  int32_t row = 0;
  for (int32_t i = 0; i < n; row += segments[i].length, i++) {
    if (segments[i].length == 1) {
      found[segments[i].slab][segments[i].slot] = {row, segments[i].start};
      if (segments[i].how == BRIDGE_RAGGED) {
        ragged.insert(segments[i].slab);
      }
    }
  }
  std::map<bridge_slab *, together> out;
  for (auto &[slab, slots] : found) {
    int32_t first = slots.begin()->first, width = slots.rbegin()->first - first + 1;
    if (slots.size() < 2 || 2 * slots.size() < static_cast<size_t>(width)) {
      continue;
    }
    together t{slab, std::vector<int32_t>(static_cast<size_t>(width), -1), std::vector<int32_t>(static_cast<size_t>(width), -1), first, static_cast<int>(slots.size()), ragged.count(slab) > 0};
    for (auto &[slot, at] : slots) {
      std::tie(t.rows[static_cast<size_t>(slot - first)], t.positions[static_cast<size_t>(slot - first)]) = at;
    }
    out.emplace(slab, std::move(t));
  }
  return out;
}

// What a step's attention is made of: arrays, and which row of the step stands
// in each of their rows.
struct attended {
  std::vector<mx::array> parts;
  std::vector<int32_t> order;

  void add(mx::array part, int first, int rows) {
    parts.push_back(std::move(part));
    for (int r = 0; r < rows; r++) {
      order.push_back(first + r);
    }
  }

  // The rows of the step, in their order.
  mx::array all() {
    auto out = parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 0);
    if (std::is_sorted(order.begin(), order.end())) {
      return out;
    }
    std::vector<int32_t> back(order.size());
    for (size_t i = 0; i < order.size(); i++) {
      back[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
    }
    return mx::take(out, list_of(back), 0);
  }
};

// Ragged segments of some slabs by one launch, in the order of the step.
void attend_slabs(const attention &a, const mx::array &q, const bridge_segment *segments, int32_t n, const std::vector<bridge_slab *> &slabs, attended &out) {
  std::vector<mx::array> held;
  for (auto *slab : slabs) {
    const auto &layer = slab->layers.at(static_cast<size_t>(a.spec->layer));
    held.insert(held.end(), {layer.keys->value, layer.values->value});
  }
  std::vector<ragged_segment> found;
  int rows = 0, row = 0;
  for (int32_t i = 0; i < n; row += segments[i].length, i++) {
    const auto &seg = segments[i];
    auto in = std::find(slabs.begin(), slabs.end(), seg.slab);
    if (seg.how != BRIDGE_RAGGED || in == slabs.end()) {
      continue;
    }
    auto at = static_cast<size_t>(in - slabs.begin());
    found.push_back({static_cast<int32_t>(at), seg.slot, held[2 * at].shape(2), seg.start, seg.length, row, rows});
    for (int r = 0; r < seg.length; r++) {
      out.order.push_back(row + r);
    }
    rows += seg.length;
  }
  const auto &list = list_of(ragged_list(a.spec->heads, a.spec->kv_heads, a.spec->scale, found));
  out.parts.push_back(multiply_ragged(q, held, list, (list.shape(0) - 4) / 8, rows, a.spec->heads));
}

// Ragged segments by the kernel, or one by one where there is none for them.
void attend_ragged(const attention &a, const mx::array &q, const bridge_segment *segments, int32_t n, attended &out) {
  bool has = has_ragged(q.dtype(), a.spec->size) && a.spec->size == a.spec->value_size && a.spec->window == 0 && !a.sinks;
  std::vector<bridge_slab *> slabs;
  int row = 0;
  for (int32_t i = 0; i < n; row += segments[i].length, i++) {
    const auto &seg = segments[i];
    if (seg.how != BRIDGE_RAGGED) {
      continue;
    }
    if (!has || type_of(seg.slab->shape.type) != q.dtype()) {
      out.add(attend_alone(a, by_head(q, row, seg.length, a.spec->heads, a.spec->size), seg), row, seg.length);
    } else if (std::find(slabs.begin(), slabs.end(), seg.slab) == slabs.end()) {
      slabs.push_back(seg.slab);
    }
  }
  for (size_t at = 0; at < slabs.size(); at += ragged_slabs) {
    auto end = std::min(slabs.size(), at + ragged_slabs);
    attend_slabs(a, q, segments, n, {slabs.begin() + static_cast<std::ptrdiff_t>(at), slabs.begin() + static_cast<std::ptrdiff_t>(end)}, out);
  }
}

// Rows of ragged segments in one slab, and where they go.
struct spread {
  std::vector<int32_t> rows, slots, positions;
  int segments = 0;
};

// Slabs that have several ragged segments.
std::map<bridge_slab *, spread> spread_out(const bridge_segment *segments, int32_t n) {
  std::map<bridge_slab *, spread> out;
  int32_t row = 0;
  for (int32_t i = 0; i < n; row += segments[i].length, i++) {
    const auto &seg = segments[i];
    if (seg.how == BRIDGE_RAGGED) {
      auto &s = out[seg.slab];
      s.segments++;
      for (int32_t r = 0; r < seg.length; r++) {
        s.rows.push_back(row + r);
        s.slots.push_back(seg.slot);
        s.positions.push_back(seg.start + r);
      }
    }
  }
  std::erase_if(out, [](const auto &s) { return s.second.segments < 2; });
  return out;
}

// Writes the keys or the values of a step, which are [T, heads*size]: of ragged
// segments in a slab together, and of groups.
void write_all(const attention &a, std::optional<slab_array> slab_layer::*part, const mx::array &x, int size, const std::map<bridge_slab *, together> &groups, const bridge_segment *segments, int32_t n) {
  auto layer = static_cast<size_t>(a.spec->layer);
  int heads = a.spec->kv_heads;
  auto spreads = spread_out(segments, n);
  for (const auto &[slab, s] : spreads) {
    place_rows(slab->layers[layer].*part, by_slot(x, s.rows, heads, size), s.slots, s.positions);
  }
  for (const auto &[slab, t] : groups) {
    if (!t.ragged) { // two of a slab are spread out
      place_all(slab->layers[layer].*part, by_slot(x, t.of_slots(t.rows), heads, size), t);
    }
  }
  int row = 0;
  for (int32_t i = 0; i < n; row += segments[i].length, i++) {
    const auto &seg = segments[i];
    bool done = seg.how == BRIDGE_RAGGED ? spreads.count(seg.slab) > 0 : seg.length == 1 && groups.count(seg.slab) > 0;
    if (!done) {
      place(seg.slab->layers[layer].*part, by_head(x, row, seg.length, heads, size), seg.slot, seg.start);
    }
  }
}

} // namespace

extern "C" {

bridge_made bridge_attend_all(uint64_t owner, bridge_array *q, bridge_array *k, bridge_array *v, int32_t heads, float scale, const int32_t *lengths, int32_t n) {
  return making(owner, [&] {
    auto queries = flat(q), keys = flat(k), values = flat(v);
    int width = queries.shape(1), size = width / heads, row = 0;
    std::vector<mx::array> parts;
    for (int32_t i = 0; i < n; row += lengths[i], i++) {
      auto part = [&](const mx::array &x) { return by_head(x, row, lengths[i], heads, size); };
      auto out = mx::fast::scaled_dot_product_attention(part(queries), part(keys), part(values), scale);
      parts.push_back(mx::reshape(mx::transpose(out, {0, 2, 1, 3}), {lengths[i], width}));
    }
    return parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 0);
  });
}

bridge_made bridge_attend(uint64_t owner, bridge_array *q, bridge_array *k, bridge_array *v, bridge_array *index_q, bridge_array *index_weights, const bridge_attend_spec *spec, const float *sinks, const bridge_segment *segments, int32_t n,
                          const int32_t *runs) {
  return making(owner, [&] {
    attention a{spec, std::nullopt, runs, std::nullopt, std::nullopt};
    if (spec->index_size > 0) {
      a.index_q = flat(index_q);
      a.index_weights = flat(index_weights);
    }
    if (sinks != nullptr) {
      a.sinks = mx::astype(mx::array(sinks, mx::Shape{spec->heads}, mx::float32), q->value.dtype());
    }
    auto groups = gather(segments, n);
    if (spec->cap > 0 || spec->index_size > 0 || spec->chunk > 0) { // each is attended by itself
      groups.clear();
    }
    const bool suits = suits_step(q->value, *spec, segments, n) && !a.sinks;
    const mx::array *keys = k == nullptr ? nullptr : &k->value, *values = v == nullptr ? nullptr : &v->value;
    if (attended out; suits && step_writes(keys, values, *spec, segments, n)) {
      out.parts = attend_step(q->value, keys, values, *spec, segments, n, true, out.order);
      return out.all();
    }
    // Everything is written before anything is read: what reads an array that is
    // then written would make the framework copy it.
    if (k != nullptr) {
      write_all(a, &slab_layer::keys, k->value, spec->size, groups, segments, n);
    }
    if (v != nullptr) {
      write_all(a, &slab_layer::values, v->value, spec->value_size, groups, segments, n);
    }
    attended out;
    if (suits) {
      out.parts = attend_step(q->value, keys, values, *spec, segments, n, false, out.order);
      return out.all();
    }
    for (auto &[slab, t] : groups) {
      if (!t.ragged) {
        out.parts.push_back(attend_together(a, q->value, t));
        auto rows = t.of_slots(t.rows);
        out.order.insert(out.order.end(), rows.begin(), rows.end());
      }
    }
    if (spec->index_size == 0) {
      attend_ragged(a, q->value, segments, n, out);
    }
    int row = 0;
    for (int32_t i = 0; i < n; row += segments[i].length, i++) {
      const auto &seg = segments[i];
      if (spec->index_size > 0) {
        out.add(attend_indexed(a, seg, q->value, row), row, seg.length);
      } else if (seg.how != BRIDGE_RAGGED && (seg.length > 1 || groups.count(seg.slab) == 0)) {
        out.add(attend_alone(a, by_head(q->value, row, seg.length, spec->heads, spec->size), seg), row, seg.length);
      }
    }
    return out.all();
  });
}

bridge_status bridge_ragged(uint64_t owner, int32_t type, int32_t size, int32_t *has) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    *has = has_ragged(type_of(type), size);
    if (*has) {
      compile_ragged(size);
    }
  });
}

} // extern "C"
