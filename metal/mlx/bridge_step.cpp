//go:build mlx

// Attention of one token of each segment by the kernel of attend_step.h.
//
// Start reading at attend_step.

#include "attend_step.h"
#include "bridge_internal.h"
#include "bridge_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <set>

#include "mlx/fast.h"
#include "mlx/fast_primitives.h"
#include "mlx/ops.h"

using namespace bridge;

namespace {

int bits(float v) { return std::bit_cast<int>(v); }

// How parts of heads are turned: alike, all that are.
struct rotation {
  int size = 0;
  bool neighbours = false;
  float base = 1, step = 1;
  std::optional<mx::array> positions, periods;

  // Takes the rotation that in are the operands of; false if another one was taken before.
  bool take(const mx::fast::RoPE &how, const std::vector<mx::array> &in) {
    auto [none, size, neighbours, base, step, forward] = how.state();
    auto same = [](const mx::array &a, const std::optional<mx::array> &b) { return !b || a.id() == b->id(); };
    bool has = in.size() > 2;
    bool agrees = this->size == 0 || (this->size == size && this->neighbours == neighbours && this->base == base && this->step == step && has == periods.has_value() && same(in[1], positions) && (!has || same(in[2], periods)));
    if (!forward || !agrees || in[1].dtype() != mx::int32 || in[1].ndim() != 1 || in[1].shape(0) != in[0].shape(0)) {
      return false;
    }
    this->size = size, this->neighbours = neighbours, this->base = base, this->step = step;
    positions = in[1];
    if (has) {
      periods = in[2];
    }
    return true;
  }
};

// Parts of heads before the norm and the rotation, which were not started yet:
// [rows, heads, width].
struct part {
  mx::array from;
  std::optional<mx::array> weight;
  float eps = 0;
  bool turned = false;

  part(const mx::array &a, int rows, int width, rotation &by) : from(inside(a, width)) {
    if (const auto *in = made_by(from, "RoPE"); in != nullptr && (*in)[0].ndim() == 4 && (*in)[0].shape(2) == 1 && (*in)[0].shape(0) == rows && by.take(static_cast<const mx::fast::RoPE &>(from.primitive()), *in)) {
      turned = true;
      from = inside((*in)[0], width);
    }
    if (const auto *in = made_by(from, "RMSNorm"); in != nullptr && (*in)[0].shape(-1) == width && (*in)[1].shape() == mx::Shape{width} && (*in)[1].dtype() == from.dtype() && (*in)[0].dtype() == from.dtype()) {
      weight = (*in)[1];
      eps = static_cast<const mx::fast::RMSNorm &>(from.primitive()).state().second;
      from = inside((*in)[0], width);
    }
    from = mx::reshape(from, {rows, static_cast<int>(from.size()) / rows / width, width});
  }

private:
  // What vectors of a width were that only stand in other rows now.
  static mx::array inside(mx::array a, int width) {
    for (const auto *in = made_by(a, "Reshape"); in != nullptr && (*in)[0].ndim() > 1 && (*in)[0].shape(-1) == width; in = made_by(a, "Reshape")) {
      a = mx::array((*in)[0]);
    }
    return a;
  }
};

// Heads of a size in one part, or the two parts that they are joined of.
std::vector<part> parts_of(const mx::array &a, int rows, int size, rotation &by) {
  auto joined = a;
  if (const auto *in = made_by(a, "Reshape"); in != nullptr && (*in)[0].shape(-1) == size) {
    joined = mx::array((*in)[0]);
  }
  if (const auto *in = joined_by_kernel(joined); in != nullptr && (*in)[0].shape(1) + (*in)[1].shape(1) == size) {
    part first((*in)[0], rows, (*in)[0].shape(1), by), second((*in)[1], rows, (*in)[1].shape(1), by);
    if (!second.weight) { // by which the kernel does not multiply
      return {std::move(first), std::move(second)};
    }
  }
  return {part(a, rows, size, by)};
}

const slab_layer &layer_of(const bridge_segment &s, const bridge_attend_spec &spec) { return s.slab->layers.at(static_cast<size_t>(spec.layer)); }

// What each token of a slab sees, as attend_step.h wants it, and its rows of the step.
std::vector<int32_t> seen_of(const bridge_slab *slab, const bridge_attend_spec &spec, bool is_new, const bridge_segment *segments, int32_t n, std::vector<int32_t> &order) {
  std::vector<int32_t> list{spec.heads, spec.kv_heads, bits(spec.scale * 1.44269504f), is_new}; // log2 e
  for (int32_t row = 0; row < n; row++) {
    const auto &seg = segments[row];
    if (seg.slab == slab) {
      int first = std::max(first_seen_from(spec, seg.start), seg.first);
      list.insert(list.end(), {row, seg.slot, first, seg.start + 1 - first, layer_of(seg, spec).keys->value.shape(2)});
      order.push_back(row);
    }
  }
  return list;
}

} // namespace

namespace bridge {

bool suits_step(const mx::array &q, const bridge_attend_spec &spec, const bridge_segment *segments, int32_t n) {
  if (!runs_kernels() || q.dtype() != mx::bfloat16 || spec.size % 64 != 0 || spec.size > 640 || spec.value_size % 64 != 0 || spec.value_size > 512 || spec.chunk != 0 || spec.cap != 0 || spec.index_size != 0) {
    return false;
  }
  return std::all_of(segments, segments + n, [&](const bridge_segment &s) {
    bool apart = layer_of(s, spec).values.has_value();
    return s.length == 1 && s.runs == 0 && (apart ? spec.size > 128 : spec.kv_heads == 1) && s.start + 1 - std::max(first_seen_from(spec, s.start), s.first) <= attend_step_longest && type_of(s.slab->shape.type) == q.dtype();
  });
}

bool step_writes(const mx::array *k, const mx::array *v, const bridge_attend_spec &spec, const bridge_segment *segments, int32_t n) {
  auto own = [](const slab_array &held) { return held.written && held.value.status() != mx::array::Status::unscheduled; };
  return k != nullptr && k->dtype() == mx::bfloat16 && (v == nullptr || v->dtype() == mx::bfloat16) && std::all_of(segments, segments + n, [&](const bridge_segment &s) {
           const auto &held = layer_of(s, spec);
           return own(*held.keys) && held.values.has_value() == (v != nullptr) && (v == nullptr || own(*held.values));
         });
}

std::vector<mx::array> attend_step(const mx::array &q, const mx::array *k, const mx::array *v, const bridge_attend_spec &spec, const bridge_segment *segments, int32_t n, bool is_new, std::vector<int32_t> &order) {
  static thread_local own_kernel kernel("attend_step", {"q0", "q1", "k0", "k1", "v", "q_weight", "k_weight", "v_weight", "positions", "periods", "list", "keys", "values"}, {"y"}, attend_step_source,
                                                              attend_step_numbers, false);
  rotation by;
  auto query = parts_of(q, n, spec.size, by), key = k == nullptr ? query : parts_of(*k, n, spec.size, by);
  rotation still; // values are not turned
  const part value = v == nullptr ? query[0] : part(*v, n, spec.value_size, still);
  auto second = [](const std::vector<part> &parts) { return parts.size() > 1 ? parts[1] : parts[0]; };
  auto weight = [&](const part &p) { return p.weight.value_or(query[0].from); }; // what there is not is not read
  auto turned = [](const std::vector<part> &parts) { return parts[0].turned + 2 * (parts.size() > 1 && parts[1].turned); };
  auto split = [](const std::vector<part> &parts) { return parts[0].from.shape(2); };
  own_kernel::constants how{
      {"SIZE", spec.size}, {"VALUE", spec.value_size}, {"APART", layer_of(segments[0], spec).values.has_value()}, {"Q_SPLIT", split(query)}, {"K_SPLIT", split(key)},
      {"NORMED", query[0].weight.has_value() + 2 * key[0].weight.has_value() + 4 * value.weight.has_value()}, {"Q_EPS", bits(query[0].eps)}, {"K_EPS", bits(key[0].eps)}, {"V_EPS", bits(value.eps)},
      {"TURNED", turned(query) + 4 * turned(key)}, {"TURN", by.size}, {"NEIGHBOURS", by.neighbours}, {"PERIODS", by.periods.has_value()}, {"BASE", bits(std::log2(by.base))}, {"STEP", bits(by.step)}};
  std::vector<mx::array> out;
  std::set<bridge_slab *> slabs;
  for (int32_t i = 0; i < n; i++) {
    auto *slab = segments[i].slab;
    if (!slabs.insert(slab).second) {
      continue;
    }
    auto &held = slab->layers.at(static_cast<size_t>(spec.layer));
    const auto keys = held.keys->value, values = held.values ? held.values->value : keys;
    auto list = seen_of(slab, spec, is_new, segments, n, order);
    int rows = static_cast<int>(list.size() - 4) / 5;
    auto y = kernel({query[0].from, second(query).from, key[0].from, second(key).from, value.from, weight(query[0]), weight(key[0]), weight(value), by.positions.value_or(query[0].from), by.periods.value_or(query[0].from),
                     list_of(std::move(list)), keys, values},
                    {mx::Shape{rows, spec.heads * spec.value_size}}, {q.dtype()}, {spec.heads * attend_step_threads, rows, 1}, {attend_step_threads, 1, 1}, how)[0];
    if (!is_new) {
      out.push_back(y);
      continue;
    }
    // The same buffers, but their readers wait for what the kernel writes.
    auto after = held.values ? mx::depends({y, keys, values}, {y}) : mx::depends({y, keys}, {y});
    held.keys = {after[1], true};
    if (held.values) {
      held.values = {after[2], true};
    }
    out.push_back(after[0]);
  }
  return out;
}

} // namespace bridge
