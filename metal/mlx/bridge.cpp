//go:build mlx

// The one file that speaks to libmlx. See bridge.h for its rules.
//
// Start reading at guarded.

#include "bridge.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cuda/cuda.h"
#include "mlx/compile.h"
#include "mlx/device.h"
#include "mlx/fast.h"
#include "mlx/memory.h"
#include "mlx/ops.h"
#include "mlx/stream.h"
#include "mlx/transforms.h"
#include "mlx/version.h"

namespace mx = mlx::core;

struct bridge_array {
  mx::array value;
};

struct bridge_row {
  struct layer {
    std::optional<mx::array> keys, values;
  };
  std::vector<layer> layers;
};

namespace {

// What belongs to a thread that attached. Positions and periods of the last
// rope are kept, because every layer of a step asks with the same ones.
struct thread_state {
  uint64_t owner = 0;
  int attached = 0;
  std::vector<int32_t> positions;
  std::vector<float> periods;
  std::optional<mx::array> offsets, frequencies;

  void forget() {
    positions.clear();
    periods.clear();
    offsets.reset();
    frequencies.reset();
  }
};

thread_local thread_state self;
std::atomic<uint64_t> owners{0}, entered{0};

char *copy_text(const char *text) {
  char *out = static_cast<char *>(std::malloc(std::strlen(text) + 1));
  if (out != nullptr) {
    std::strcpy(out, text);
  }
  return out;
}

// Whether what the framework says means that memory ran out; it has no type of
// its own for that (allocator.cpp of its metal, cuda and no_gpu back ends).
bool says_memory(const char *text) {
  for (const char *part : {"out of memory", "Unable to allocate", "maximum allowed buffer size", "Resource limit", "memory allocation", "Insufficient Memory"}) {
    if (std::strstr(text, part) != nullptr) {
      return true;
    }
  }
  return false;
}

bridge_status &status_of(bridge_status &s) { return s; }
template <class R> bridge_status &status_of(R &r) { return r.status; }

// guarded runs f for the thread that attached and turns every exception into a
// status.
template <class R, class F> R guarded(uint64_t owner, F &&f) noexcept {
  R out{};
  bridge_status &status = status_of(out);
  if (owner == 0 || owner != self.owner) {
    status.code = BRIDGE_THREAD;
    return out;
  }
  entered.fetch_add(1, std::memory_order_relaxed);
  try {
    f(out);
  } catch (const std::bad_alloc &) {
    status = {BRIDGE_MEMORY, copy_text("the allocator has no memory left")};
  } catch (const std::exception &e) {
    status = {says_memory(e.what()) ? BRIDGE_MEMORY : BRIDGE_FAILED, copy_text(e.what())};
  } catch (...) {
    status = {BRIDGE_FAILED, copy_text("an exception without a text")};
  }
  return out;
}

// become_owner marks this thread, unless another of its back ends did.
uint64_t become_owner() {
  if (self.owner == 0) {
    self.owner = owners.fetch_add(1) + 1;
  }
  return self.owner;
}

bridge_made hand_over(mx::array a) {
  int64_t bytes = static_cast<int64_t>(a.nbytes());
  return {new bridge_array{std::move(a)}, bytes, {BRIDGE_OK, nullptr}};
}

// making is guarded for functions that make one array.
template <class F> bridge_made making(uint64_t owner, F &&f) noexcept {
  return guarded<bridge_made>(owner, [&](bridge_made &out) { out = hand_over(f()); });
}

bool on_gpu() { return mx::default_device() == mx::Device::gpu; }

mx::Shape shape_of(const int32_t *shape, int32_t dims) { return mx::Shape(shape, shape + dims); }

mx::Dtype type_of(int32_t type) {
  switch (type) {
  case BRIDGE_FLOAT16:
    return mx::float16;
  case BRIDGE_BFLOAT16:
    return mx::bfloat16;
  case BRIDGE_WORDS:
    return mx::uint32;
  }
  return mx::float32;
}

// Rows [from, to) of x [T, D]; all of them are x itself.
mx::array rows_of(const mx::array &x, int from, int to) {
  if (from == 0 && to == x.shape(0)) {
    return x;
  }
  return mx::slice(x, {from, 0}, {to, x.shape(1)});
}

} // namespace

extern "C" {

bridge_attached bridge_attach(void) {
  return guarded<bridge_attached>(become_owner(), [](bridge_attached &out) {
    mx::default_stream(mx::default_device()); // this thread's own
    out.gpu = on_gpu();
    out.cuda = mx::cu::is_available();
    out.memory_limit = static_cast<int64_t>(mx::get_memory_limit());
    out.owner = self.owner;
    self.attached++;
  });
}

bridge_said bridge_about(uint64_t owner) {
  return guarded<bridge_said>(owner, [](bridge_said &out) {
    std::string text = std::string("version ") + mx::version() + "\ndevice " + (on_gpu() ? "gpu" : "cpu");
    for (const auto &[name, value] : mx::device_info()) {
      const auto *words = std::get_if<std::string>(&value);
      const auto *number = std::get_if<size_t>(&value);
      text += "\n" + name + " " + (words != nullptr ? *words : number != nullptr ? std::to_string(*number) : "");
    }
    out.text = copy_text(text.c_str());
  });
}

bridge_status bridge_detach(uint64_t owner) {
  return guarded<bridge_status>(owner, [](bridge_status &) {
    self.forget();
    if (--self.attached == 0) {
      self.owner = 0; // a later back end of this thread gets another
    }
  });
}

bridge_status bridge_check(uint64_t owner) {
  return guarded<bridge_status>(owner, [](bridge_status &) {});
}

uint64_t bridge_entered(void) { return entered.load(); }

bridge_status bridge_limit(uint64_t owner, int64_t memory, int64_t pooled) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    mx::set_memory_limit(static_cast<size_t>(memory));
    mx::set_cache_limit(static_cast<size_t>(pooled));
  });
}

// The only place that clears the pool: what is still computing must not lose
// its buffers.
bridge_status bridge_trim(uint64_t owner) {
  return guarded<bridge_status>(owner, [](bridge_status &) {
    mx::synchronize();
    mx::clear_cache();
  });
}

static void measure(bridge_gauges *out) {
  *out = {static_cast<int64_t>(mx::get_active_memory()), static_cast<int64_t>(mx::get_cache_memory()), static_cast<int64_t>(mx::get_peak_memory())};
}

bridge_status bridge_measure(uint64_t owner, bridge_gauges *out) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { measure(out); });
}

bridge_status bridge_reset_peak(uint64_t owner) {
  return guarded<bridge_status>(owner, [](bridge_status &) { mx::reset_peak_memory(); });
}

bridge_made bridge_floats(uint64_t owner, const float *values, const int32_t *shape, int32_t dims) {
  return making(owner, [&] { return mx::array(values, shape_of(shape, dims), mx::float32); });
}

bridge_made bridge_ids(uint64_t owner, const int32_t *ids, int32_t n) {
  return making(owner, [&] { return mx::array(ids, mx::Shape{n}, mx::int32); });
}

// Memory that any thread may fill before the array is first used.
bridge_made bridge_raw(uint64_t owner, int32_t type, const int32_t *shape, int32_t dims, void **memory) {
  return making(owner, [&] {
    mx::Dtype t = type_of(type);
    size_t bytes = mx::size_of(t);
    for (int32_t i = 0; i < dims; i++) {
      bytes *= static_cast<size_t>(shape[i]);
    }
    auto data = mx::allocator::malloc(bytes);
    if (data.buffer().ptr() == nullptr) {
      throw std::bad_alloc();
    }
    *memory = data.buffer().raw_ptr();
    return mx::array(std::move(data), shape_of(shape, dims), t);
  });
}

// What was filled by the host, where the device wants it. CUDA's allocator
// gives the host managed memory; an operation's result lies on the device.
bridge_made bridge_settle(uint64_t owner, bridge_array *a) {
  return making(owner, [&] {
    if (!mx::cu::is_available() || !on_gpu()) {
      return a->value;
    }
    auto whole = a->value.itemsize() == 4 ? mx::uint32 : mx::uint16;
    // a stays alive, so that its buffer is not taken for the result.
    auto copy = mx::view(mx::bitwise_or(mx::view(a->value, whole), mx::array(0, whole)), a->value.dtype());
    mx::eval({copy});
    return copy;
  });
}

bridge_status bridge_release(uint64_t owner, bridge_array **arrays, int32_t n, int32_t last, bridge_gauges *out) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    for (int32_t i = 0; i < n; i++) {
      delete arrays[i];
    }
    if (last) {
      self.forget();
    }
    measure(out);
  });
}

bridge_status bridge_evaluate(uint64_t owner, bridge_array **arrays, int32_t n, bridge_row **rows, int32_t m, int32_t wait) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    std::vector<mx::array> all;
    for (int32_t i = 0; i < n; i++) {
      all.push_back(arrays[i]->value);
    }
    for (int32_t i = 0; i < m; i++) {
      for (auto &layer : rows[i]->layers) {
        if (layer.keys) {
          all.push_back(*layer.keys);
          all.push_back(*layer.values);
        }
      }
    }
    if (wait) {
      mx::eval(std::move(all));
    } else {
      mx::async_eval(std::move(all));
    }
  });
}

bridge_status bridge_read_floats(uint64_t owner, bridge_array *a, float *dst, int64_t n) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto x = mx::contiguous(mx::astype(a->value, mx::float32));
    mx::eval({x});
    std::memcpy(dst, x.data<float>(), static_cast<size_t>(n) * sizeof(float));
  });
}

bridge_status bridge_read_ids(uint64_t owner, bridge_array *a, int32_t *dst, int64_t n) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto x = mx::contiguous(a->value);
    mx::eval({x});
    std::memcpy(dst, x.data<int32_t>(), static_cast<size_t>(n) * sizeof(int32_t));
  });
}

bridge_made bridge_embed(uint64_t owner, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, bridge_array *ids) {
  return making(owner, [&] {
    auto rows = mx::take(w->value, ids->value, 0);
    if (scales == nullptr) {
      return rows;
    }
    return mx::dequantize(rows, mx::take(scales->value, ids->value, 0), mx::take(biases->value, ids->value, 0), group, bits, "affine");
  });
}

bridge_made bridge_linear(uint64_t owner, bridge_array *x, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits) {
  return making(owner, [&] {
    if (scales == nullptr) {
      return mx::matmul(x->value, mx::transpose(w->value));
    }
    auto in = x->value;
    int rows = in.shape(0);
    // CUDA's kernel for 8 rows and more is faster from 3 rows on.
    bool pad = rows > 2 && rows < 8 && on_gpu() && mx::cu::is_available();
    if (pad) {
      in = mx::concatenate({in, mx::zeros({8 - rows, in.shape(1)}, in.dtype())}, 0);
    }
    auto out = mx::quantized_matmul(in, w->value, scales->value, biases->value, true, group, bits);
    return pad ? rows_of(out, 0, rows) : out;
  });
}

bridge_made bridge_rows(uint64_t owner, bridge_array *x, const int32_t *rows, int32_t n) {
  return making(owner, [&] {
    bool all = n == x->value.shape(0);
    for (int32_t i = 0; i < n && all; i++) {
      all = rows[i] == i;
    }
    return all ? x->value : mx::take(x->value, mx::array(rows, mx::Shape{n}, mx::int32), 0);
  });
}

bridge_made bridge_argmax(uint64_t owner, bridge_array *x, int32_t width) {
  return making(owner, [&] {
    auto first = mx::slice(x->value, {0, 0}, {x->value.shape(0), width});
    auto good = mx::logical_and(mx::isfinite(mx::max(first, -1)), mx::logical_not(mx::any(mx::isnan(first), -1)));
    return mx::where(good, mx::astype(mx::argmax(first, -1), mx::int32), mx::array(-1));
  });
}

bridge_made bridge_add(uint64_t owner, bridge_array *a, bridge_array *b) {
  return making(owner, [&] { return mx::add(a->value, b->value); });
}

bridge_made bridge_multiply(uint64_t owner, bridge_array *a, bridge_array *b) {
  return making(owner, [&] { return mx::multiply(a->value, b->value); });
}

bridge_made bridge_silu(uint64_t owner, bridge_array *x) {
  return making(owner, [&] { return mx::multiply(x->value, mx::sigmoid(x->value)); });
}

static std::vector<mx::array> swiglu(const std::vector<mx::array> &in) {
  return {mx::multiply(mx::multiply(in[0], mx::sigmoid(in[0])), in[1])};
}

bridge_made bridge_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up) {
  return making(owner, [&] {
    if (!on_gpu()) { // there, compiling would call a C++ compiler
      return swiglu({gate->value, up->value})[0];
    }
    static thread_local auto fused = mx::compile(swiglu, true);
    return fused({gate->value, up->value})[0];
  });
}

bridge_made bridge_rms_norm(uint64_t owner, bridge_array *x, bridge_array *weight, float eps) {
  return making(owner, [&] {
    auto &in = x->value;
    int width = weight->value.shape(0), runs = in.shape(1) / width;
    if (runs == 1) {
      return mx::fast::rms_norm(in, weight->value, eps);
    }
    auto split = mx::reshape(in, {in.shape(0), runs, width});
    return mx::reshape(mx::fast::rms_norm(split, weight->value, eps), {in.shape(0), runs * width});
  });
}

bridge_made bridge_mean(uint64_t owner, bridge_array *x, const int32_t *lengths, int32_t n, const float *mask) {
  return making(owner, [&] {
    auto in = mx::astype(x->value, mx::float32);
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
    auto in = mx::astype(x->value, mx::float32);
    auto norm = mx::sqrt(mx::sum(mx::square(in), 1, true));
    auto zero = mx::array(0.0f);
    auto scale = mx::where(mx::greater(norm, zero), mx::divide(mx::array(1.0f), norm), zero);
    return mx::multiply(in, scale);
  });
}

// Offsets and frequencies as the rope kernel wants them, from the last call if
// they are the same.
static const mx::array &offsets_of(const int32_t *positions, int n) {
  std::vector<int32_t> wanted(positions, positions + n);
  if (!self.offsets || self.positions != wanted) {
    self.offsets = mx::array(positions, mx::Shape{n}, mx::int32);
    self.positions = std::move(wanted);
  }
  return *self.offsets;
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
bridge_made bridge_rope(uint64_t owner, bridge_array *x, const int32_t *positions, const bridge_rope_spec *spec, const float *periods) {
  return making(owner, [&] {
    int tokens = x->value.shape(0), heads = x->value.shape(1) / spec->head;
    auto in = mx::reshape(x->value, {tokens, heads, 1, spec->head});
    if (spec->magnitude != 1) { // turning is linear: before is as good as after
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
      return mx::fast::rope(rows, spec->size, false, base, spec->scale, offsets, freqs);
    };
    const auto &offsets = offsets_of(positions, tokens);
    // CUDA's grid has at most 65,535 blocks in the dimension that holds rows.
    const int most = std::max(1, 65535 / ((heads + 3) / 4));
    if (tokens <= most) {
      return mx::reshape(turn(in, offsets), x->value.shape());
    }
    std::vector<mx::array> parts;
    for (int at = 0; at < tokens; at += most) {
      int end = std::min(tokens, at + most);
      parts.push_back(turn(mx::slice(in, {at, 0, 0, 0}, {end, heads, 1, spec->head}), mx::slice(offsets, {at}, {end})));
    }
    return mx::reshape(mx::concatenate(std::move(parts), 0), x->value.shape());
  });
}

bridge_row *bridge_row_new(int32_t layers) {
  try {
    return new bridge_row{std::vector<bridge_row::layer>(static_cast<size_t>(layers))};
  } catch (...) {
    return nullptr;
  }
}

bridge_status bridge_row_free(uint64_t owner, bridge_row *row) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { delete row; });
}

// Rows [from, from+length) of x [T, heads*size] as [1, heads, length, size].
static mx::array by_head(const mx::array &x, int from, int length, int heads, int size) {
  auto rows = rows_of(x, from, from + length);
  if (length == 1) {
    return mx::reshape(rows, {1, heads, 1, size});
  }
  return mx::transpose(mx::reshape(rows, {1, length, heads, size}), {0, 2, 1, 3});
}

// Writes fresh rows into held, which gets room for capacity tokens. The old
// handle goes before anything is computed, so that its buffer is reused.
static void append(std::optional<mx::array> &held, mx::array fresh, int start, int capacity) {
  int heads = fresh.shape(1), length = fresh.shape(2), size = fresh.shape(3);
  auto room = [&](int tokens, mx::Dtype type) { return mx::broadcast_to(mx::array(0, type), {1, heads, tokens, size}); };
  if (!held) {
    held = mx::contiguous(room(capacity, fresh.dtype()));
  } else if (held->shape(2) < capacity) {
    held = mx::concatenate({*held, room(capacity - held->shape(2), held->dtype())}, 2);
  }
  held = mx::slice_update(*held, mx::astype(std::move(fresh), held->dtype()), mx::Shape{0, 0, start, 0}, mx::Shape{1, heads, start + length, size});
}

// One segment's queries against what its row holds: [length, heads*size].
static mx::array attend(const mx::array &q, const bridge_row::layer &held, const bridge_attend_spec *spec, const bridge_segment &seg, const std::optional<mx::array> &sinks) {
  int end = seg.start + seg.length, first = 0;
  if (spec->window > 0) {
    first = std::max(0, seg.start + 1 - spec->window);
  }
  auto seen = [&](const mx::array &a) { return mx::slice(a, {0, 0, first, 0}, {1, spec->kv_heads, end, spec->size}); };
  std::string mode;
  std::optional<mx::array> mask;
  if (seg.length > 1 && spec->window > 0 && end > spec->window) {
    auto row = mx::expand_dims(mx::arange(seg.start, end), 1), column = mx::expand_dims(mx::arange(first, end), 0);
    auto distance = mx::subtract(row, column);
    mask = mx::logical_and(mx::greater_equal(distance, mx::array(0)), mx::less(distance, mx::array(spec->window)));
    mode = "array";
  } else if (seg.length > 1) {
    mode = "causal";
  }
  auto out = mx::fast::scaled_dot_product_attention(q, seen(*held.keys), seen(*held.values), spec->scale, mode, mask, sinks);
  if (seg.length > 1) {
    out = mx::transpose(out, {0, 2, 1, 3});
  }
  return mx::reshape(out, {seg.length, spec->heads * spec->size});
}

bridge_made bridge_attend(uint64_t owner, bridge_array *q, bridge_array *k, bridge_array *v, const bridge_attend_spec *spec, const float *sinks, const bridge_segment *segments, int32_t n) {
  return making(owner, [&] {
    std::optional<mx::array> given;
    if (sinks != nullptr) {
      given = mx::astype(mx::array(sinks, mx::Shape{spec->heads}, mx::float32), q->value.dtype());
    }
    std::vector<mx::array> parts;
    int at = 0;
    for (int32_t i = 0; i < n; i++) {
      const auto &seg = segments[i];
      auto &held = seg.row->layers.at(static_cast<size_t>(spec->layer));
      append(held.keys, by_head(k->value, at, seg.length, spec->kv_heads, spec->size), seg.start, seg.capacity);
      append(held.values, by_head(v->value, at, seg.length, spec->kv_heads, spec->size), seg.start, seg.capacity);
      parts.push_back(attend(by_head(q->value, at, seg.length, spec->heads, spec->size), held, spec, seg, given));
      at += seg.length;
    }
    return parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 0);
  });
}

} // extern "C"
