//go:build mlx

// The one file that speaks to libmlx. See bridge.h for its rules.
//
// Start reading at guarded.

#include "bridge.h"
#include "few_rows.h"
#include "ragged.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <set>
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

// Keys or values of one layer: [slots, kvHeads, capacity, size].
struct slab_array {
  mx::array value;
  // written says that it was written into: no other array shares its buffer, but
  // for those that steps read it through.
  bool written = false;
};

struct slab_layer {
  std::optional<slab_array> keys, values;
};

struct bridge_slab {
  std::vector<slab_layer> layers;
  int capacity;
  bridge_kv_shape shape;
};

namespace {

// What belongs to a thread that attached. Lists of numbers that operations
// need on the device are kept until the computation ends, because every layer
// of a step asks with the same ones.
struct thread_state {
  uint64_t owner = 0;
  int attached = 0;
  std::map<std::vector<int32_t>, mx::array> lists;
  std::map<std::vector<int32_t>, mx::array> masks;
  std::vector<float> periods;
  std::optional<mx::array> frequencies;
  // From how many weights on a product is computed on two streams.
  int64_t halved_from = 1 << 24;
  // So many bytes of what is restored come as they are, to be taken apart on the
  // device; 0 where the host takes them apart.
  int64_t whole = 0;

  void forget() {
    lists.clear();
    masks.clear();
    periods.clear();
    frequencies.reset();
  }
};

thread_local thread_state self;
// A processor's second stream, once it is wanted. A stream is a thread that
// never ends, so this one outlives the back end that asked for it.
thread_local std::optional<mx::Stream> beside;
std::atomic<uint64_t> owners{0}, entered{0};
// Bytes that a processor's allocator counts as active although the system
// refused them (MLX 0.32.4, allocator.cpp of its no_gpu back end).
std::atomic<int64_t> refused{0};

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

// Whether kernels of ours run here: what they ask of the tensor cores.
bool runs_kernels() {
  static const bool able = [] {
    if (!on_gpu() || !mx::cu::is_available()) {
      return false;
    }
    auto facts = mx::device_info();
    auto found = facts.find("compute_capability_major");
    const auto *major = found == facts.end() ? nullptr : std::get_if<size_t>(&found->second);
    return major != nullptr && *major >= 8;
  }();
  return able;
}

// Operations element by element, of shapes that broadcast: one kernel on a GPU;
// elsewhere compiling would call a C++ compiler. Constants are operands:
// compiled, they would be kept for ever.
template <std::vector<mx::array> (*f)(const std::vector<mx::array> &)> std::vector<mx::array> fused(const std::vector<mx::array> &in) {
  if (!on_gpu()) {
    return f(in);
  }
  static thread_local auto compiled = mx::compile(f, true);
  return compiled(in);
}

mx::array wide(const mx::array &x) { return mx::astype(x, mx::float32); }

mx::Shape shape_of(const int32_t *shape, int32_t dims) { return mx::Shape(shape, shape + dims); }

mx::Dtype type_of(int32_t type) {
  switch (type) {
  case BRIDGE_FLOAT16:
    return mx::float16;
  case BRIDGE_BFLOAT16:
    return mx::bfloat16;
  case BRIDGE_WORDS:
    return mx::uint32;
  case BRIDGE_BYTES:
    return mx::uint8;
  }
  return mx::float32;
}

const char *mode_name(int32_t mode) {
  static const char *const names[] = {"affine", "mxfp4", "mxfp8", "nvfp4"};
  return names[mode];
}

// Rows [from, to) of x [T, ...]; all of them are x itself.
mx::array rows_of(const mx::array &x, int from, int to) {
  if (from == 0 && to == x.shape(0)) {
    return x;
  }
  auto start = mx::Shape(x.ndim(), 0), stop = x.shape();
  start[0] = from;
  stop[0] = to;
  return mx::slice(x, start, stop);
}

// An array whose memory the host fills before it is first used.
mx::array host_array(mx::Dtype type, mx::Shape shape, void **memory) {
  size_t bytes = mx::size_of(type);
  for (auto n : shape) {
    bytes *= static_cast<size_t>(n);
  }
  const auto before = mx::get_active_memory();
  auto data = mx::allocator::malloc(bytes);
  if (data.buffer().ptr() == nullptr) {
    refused += static_cast<int64_t>(mx::get_active_memory() - before);
    throw std::bad_alloc();
  }
  *memory = data.buffer().raw_ptr();
  return mx::array(std::move(data), std::move(shape), type);
}

// The same bits as the result of an operation, which has a buffer of its own.
mx::array device_copy(const mx::array &a) {
  auto whole = a.itemsize() == 4 ? mx::uint32 : a.itemsize() == 2 ? mx::uint16 : mx::uint8;
  return mx::view(mx::bitwise_or(mx::view(a, whole), mx::array(0, whole)), a.dtype());
}

// Numbers as [T, D]. Norms of heads and ropes leave theirs as [T, heads, size]
// and [T, heads, 1, size], because what comes next mostly wants them so.
mx::array flat(const bridge_array *x) {
  return x->value.ndim() <= 2 ? x->value : mx::reshape(x->value, {x->value.shape(0), -1});
}

} // namespace

extern "C" {

bridge_attached bridge_attach(void) {
  return guarded<bridge_attached>(become_owner(), [](bridge_attached &out) {
    // Where nobody said otherwise, CUDA's work is launched as it comes: a graph of
    // it saves nothing where every step has other lengths, and costs the host more
    // than the launches (H100, 16 answers beside prompts: 38 ms a step, 28 without).
    setenv("MLX_USE_CUDA_GRAPHS", "0", 0);
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
      self = {}; // a later back end of this thread gets another owner
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
    if (beside) {
      mx::synchronize(*beside);
    }
    mx::synchronize();
    mx::clear_cache();
  });
}

// The pool gives up what lies in it longest, down to some bytes. The framework
// does that whenever it allocates and its limit is passed.
bridge_status bridge_shrink(uint64_t owner, int64_t to, int64_t limit) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    mx::set_cache_limit(static_cast<size_t>(to));
    auto least = mx::allocator::malloc(1);
    mx::set_cache_limit(static_cast<size_t>(limit));
  });
}

static void measure(bridge_gauges *out) {
  const int64_t never = refused.load();
  *out = {static_cast<int64_t>(mx::get_active_memory()) - never, static_cast<int64_t>(mx::get_cache_memory()), static_cast<int64_t>(mx::get_peak_memory()) - never};
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

bridge_made bridge_join_ids(uint64_t owner, bridge_array *a, const int32_t *rows, int32_t wanted, const int32_t *ids, int32_t n) {
  return making(owner, [&] {
    bool all = wanted == a->value.shape(0);
    for (int32_t i = 0; i < wanted && all; i++) {
      all = rows[i] == i;
    }
    auto first = all ? a->value : mx::take(a->value, mx::array(rows, mx::Shape{wanted}, mx::int32), 0);
    return n == 0 ? first : mx::concatenate({first, mx::array(ids, mx::Shape{n}, mx::int32)}, 0);
  });
}

// Memory that any thread may fill before the array is first used.
bridge_made bridge_raw(uint64_t owner, int32_t type, const int32_t *shape, int32_t dims, void **memory) {
  return making(owner, [&] { return host_array(type_of(type), shape_of(shape, dims), memory); });
}

// What was filled by the host, where the device wants it. CUDA's allocator
// gives the host managed memory; an operation's result lies on the device.
// With parts, columns of [out, width] are cut: [parts, out, width/parts].
bridge_made bridge_settle(uint64_t owner, bridge_array *a, int32_t parts) {
  return making(owner, [&] {
    if (parts > 1) {
      int out = a->value.shape(0), width = a->value.shape(1) / parts;
      auto cut = mx::contiguous(mx::transpose(mx::reshape(a->value, {out, parts, width}), {1, 0, 2}));
      mx::eval({cut});
      return cut;
    }
    if (!mx::cu::is_available() || !on_gpu()) {
      return a->value;
    }
    auto copy = device_copy(a->value); // a stays alive, so that its buffer is not taken for the result
    mx::eval({copy});
    return copy;
  });
}

// Rows of matrices behind one another; those of cut ones part by part.
bridge_made bridge_join(uint64_t owner, bridge_array **parts, int32_t n) {
  return making(owner, [&] {
    std::vector<mx::array> all;
    for (int32_t i = 0; i < n; i++) {
      all.push_back(parts[i]->value);
    }
    auto joined = mx::concatenate(all, parts[0]->value.ndim() - 2);
    mx::eval({joined});
    return joined;
  });
}

// [from, to) along an axis counted from the last (-1); now asks for a view that
// is there already.
bridge_made bridge_span(uint64_t owner, bridge_array *a, int32_t axis, int32_t from, int32_t to, int32_t now) {
  return making(owner, [&] {
    auto start = mx::Shape(a->value.ndim(), 0), stop = a->value.shape();
    auto at = static_cast<size_t>(static_cast<int>(a->value.ndim()) + axis);
    start[at] = from;
    stop[at] = to;
    auto part = mx::slice(a->value, start, stop);
    if (now) {
      mx::eval({part});
    }
    return part;
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

bridge_status bridge_evaluate(uint64_t owner, bridge_array **arrays, int32_t n, bridge_slab **slabs, int32_t m, int32_t wait) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto run = [&](std::vector<mx::array> all) {
      if (all.empty()) {
        return;
      }
      if (wait) {
        mx::eval(std::move(all));
      } else {
        mx::async_eval(std::move(all));
      }
    };
    std::vector<mx::array> wanted, rest;
    for (int32_t i = 0; i < n; i++) {
      wanted.push_back(arrays[i]->value);
    }
    run(std::move(wanted));
    // Slabs mostly came along: what was attended was written before.
    auto also = [&](const mx::array &a) {
      if (a.status() == mx::array::Status::unscheduled) {
        rest.push_back(a);
      }
    };
    for (int32_t i = 0; i < m; i++) {
      for (auto &layer : slabs[i]->layers) {
        if (layer.keys) {
          also(layer.keys->value);
          also(layer.values->value);
        }
      }
    }
    run(std::move(rest));
  });
}

// The same values, computed, row after row. Another operation is only asked
// for where they are not so already: it would wait behind all that was started
// since.
static mx::array plain(mx::array x) {
  mx::eval({x});
  if (!x.flags().row_contiguous) {
    x = mx::contiguous(x);
    mx::eval({x});
  }
  return x;
}

bridge_status bridge_read_floats(uint64_t owner, bridge_array *a, float *dst, int64_t n) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto x = plain(mx::astype(a->value, mx::float32));
    std::memcpy(dst, x.data<float>(), static_cast<size_t>(n) * sizeof(float));
  });
}

bridge_status bridge_read_ids(uint64_t owner, bridge_array *a, int32_t *dst, int64_t n) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto x = plain(a->value);
    std::memcpy(dst, x.data<int32_t>(), static_cast<size_t>(n) * sizeof(int32_t));
  });
}

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
  return runs_kernels() && type == mx::bfloat16 && bits == 4 && group == 64 && out % few_rows_outputs == 0 && in % few_rows_columns == 0;
}

// Biases where there are any.
static std::optional<mx::array> beside_scales(const bridge_array *biases) { return biases == nullptr ? std::nullopt : std::optional(biases->value); }

static bool suits_few_rows(const mx::array &x, const mx::array &w, const mx::array &scales, int32_t group, int32_t bits) {
  return x.shape(0) <= some_rows && w.ndim() == 2 && x.dtype() == scales.dtype() && has_few_rows(scales.dtype(), group, bits, w.shape(0), x.shape(1));
}

static mx::array multiply_few_rows(const mx::array &x, const mx::array &w, const mx::array &scales, const mx::array &biases) {
  static thread_local const auto few = mx::fast::cuda_kernel("few_rows", {"x", "w", "scales", "biases"}, {"y"}, few_rows_source, std::string(few_rows_product) + few_rows_numbers);
  static thread_local const auto some =
      mx::fast::cuda_kernel("some_rows", {"x", "w", "scales", "biases"}, {"y"}, some_rows_source, std::string(few_rows_product) + some_rows_machine + some_rows_numbers);
  int rows = x.shape(0), out = w.shape(0), threads = 32 * std::min(few_rows_warps, x.shape(1) / few_rows_columns);
  mx::Shape y{rows, out};
  if (rows > few_rows) {
    int blocks = (out + some_rows_outputs - 1) / some_rows_outputs, tiles = (rows + some_rows_at_once - 1) / some_rows_at_once;
    return some({x, w, scales, biases}, {y}, {x.dtype()}, {blocks * some_rows_threads, tiles, 1}, {some_rows_threads, 1, 1}, {}, std::nullopt, false, {})[0];
  }
  return few({x, w, scales, biases}, {y}, {x.dtype()}, {out / few_rows_outputs * threads, 1, 1}, {threads, 1, 1}, {{"TILES", (rows + 7) / 8}}, std::nullopt, false, {})[0];
}

// Compiles the kernels, and one for each number of tiles, some seconds each, which
// would otherwise be a pause in the middle of an answer.
static void compile_few_rows() {
  static thread_local bool done = false;
  if (std::exchange(done, true)) {
    return;
  }
  std::vector<mx::array> made;
  for (int rows : {1, 9, 17}) {
    auto number = [](mx::Shape shape) { return mx::zeros(std::move(shape), mx::bfloat16); };
    auto w = mx::zeros({few_rows_outputs, few_rows_columns / 8}, mx::uint32);
    made.push_back(multiply_few_rows(number({rows, few_rows_columns}), w, number({few_rows_outputs, few_rows_columns / 64}), number({few_rows_outputs, few_rows_columns / 64})));
  }
  mx::eval(std::move(made));
}

bridge_status bridge_few_rows(uint64_t owner, int32_t type, int32_t group, int32_t bits, int32_t out, int32_t in, int32_t *has) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    *has = has_few_rows(type_of(type), group, bits, out, in);
    if (*has) {
      compile_few_rows();
    }
  });
}

bridge_status bridge_halve(uint64_t owner, int64_t from) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { self.halved_from = from; });
}

// The outputs of a matrix in two halves, on two streams of a processor: what
// one is told is computed on one core.
static mx::array multiply_in_halves(const mx::array &x, const mx::array &w, const mx::array &scales, const std::optional<mx::array> &biases, int group, int bits, int32_t mode) {
  if (!beside) {
    beside = mx::new_stream(mx::Device::cpu);
  }
  int out = w.shape(0), half = out / 2;
  auto part = [&](int from, int to, mx::StreamOrDevice on) {
    auto rows = [&](const mx::array &a) { return mx::slice(a, {from, 0}, {to, a.shape(1)}, on); };
    return mx::quantized_matmul(x, rows(w), rows(scales), biases ? std::optional(rows(*biases)) : std::nullopt, true, group, bits, mode_name(mode), on);
  };
  auto second = part(half, out, *beside);
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
      return multiply_few_rows(in, w->value, scales->value, biases->value);
    }
    // CUDA's kernel for 8 rows and more is faster from 3 rows on.
    bool pad = rows > 2 && rows < 8 && on_gpu() && mx::cu::is_available();
    if (pad) {
      in = mx::concatenate({in, mx::zeros({8 - rows, in.shape(1)}, in.dtype())}, 0);
    }
    int parts = w->value.ndim() == 3 ? w->value.shape(0) : 1;
    if (!on_gpu() && parts == 1 && static_cast<int64_t>(w->value.shape(0)) * in.shape(1) >= self.halved_from && w->value.shape(0) > 1) {
      return multiply_in_halves(in, w->value, scales->value, beside_scales(biases), group, bits, mode);
    }
    if (parts > 1) {
      in = mx::transpose(mx::reshape(in, {in.shape(0), parts, in.shape(1) / parts}), {1, 0, 2});
    }
    auto out = mx::quantized_matmul(in, w->value, scales->value, beside_scales(biases), true, group, bits, mode_name(mode));
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

bridge_made bridge_shares(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t k, int32_t normalized) {
  return making(owner, [&] {
    auto shares = mx::take_along_axis(x->value, mx::reshape(chosen->value, {x->value.shape(0), k}), -1);
    return normalized ? mx::divide(shares, mx::sum(shares, -1, true)) : shares;
  });
}

bridge_made bridge_top_shares(uint64_t owner, bridge_array *scores, bridge_array *chosen, int32_t k) {
  return making(owner, [&] {
    auto x = flat(scores);
    return mx::softmax(mx::take_along_axis(x, mx::reshape(chosen->value, {x.shape(0), k}), -1), -1, true);
  });
}

// From so many products on, rows are sorted by their expert, so that each
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

bridge_made bridge_linear_of(uint64_t owner, bridge_array *x, bridge_array *chosen, int32_t experts, bridge_array *w, bridge_array *scales, bridge_array *biases, int32_t group, int32_t bits, int32_t mode) {
  return making(owner, [&] {
    auto in = flat(x);
    if (scales == nullptr) {
      return multiply_chosen(in, chosen->value, experts, w->value, nullptr, nullptr, 0, 0, mode);
    }
    if (w->value.ndim() == 2) {
      return multiply_chosen(in, chosen->value, experts, w->value, &scales->value, biases == nullptr ? nullptr : &biases->value, group, bits, mode);
    }
    int parts = w->value.shape(0), width = in.shape(1) / parts;
    std::optional<mx::array> sum;
    for (int p = 0; p < parts; p++) { // of columns
      auto part = [&](const bridge_array *a) { return mx::reshape(mx::slice(a->value, {p, 0, 0}, {p + 1, a->value.shape(1), a->value.shape(2)}), {a->value.shape(1), a->value.shape(2)}); };
      auto words = part(w), s = part(scales);
      auto b = biases == nullptr ? std::nullopt : std::optional(part(biases));
      auto y = multiply_chosen(mx::slice(in, {0, p * width}, {in.shape(0), (p + 1) * width}), chosen->value, experts, words, &s, b ? &*b : nullptr, group, bits, mode);
      sum = sum ? mx::add(*sum, y) : y;
    }
    return *sum;
  });
}

bridge_made bridge_combine(uint64_t owner, bridge_array *y, bridge_array *shares) {
  return making(owner, [&] {
    int tokens = shares->value.shape(0), k = shares->value.shape(1);
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

bridge_made bridge_multiply(uint64_t owner, bridge_array *a, bridge_array *b) {
  return making(owner, [&] { return mx::multiply(flat(a), flat(b)); });
}

bridge_made bridge_add_bias(uint64_t owner, bridge_array *x, bridge_array *bias) {
  return making(owner, [&] { return mx::add(flat(x), bias->value); });
}

static std::vector<mx::array> silu(const std::vector<mx::array> &in) { return {mx::multiply(in[0], mx::sigmoid(in[0]))}; }

bridge_made bridge_silu(uint64_t owner, bridge_array *x) {
  return making(owner, [&] { return fused<silu>({flat(x)})[0]; });
}

static std::vector<mx::array> swiglu(const std::vector<mx::array> &in) {
  return {mx::multiply(mx::multiply(in[0], mx::sigmoid(in[0])), in[1])};
}

bridge_made bridge_swiglu(uint64_t owner, bridge_array *gate, bridge_array *up) {
  return making(owner, [&] { return fused<swiglu>({flat(gate), flat(up)})[0]; });
}

// As mlx.nn's gelu_approx, whose constants have the type of their operand.
static std::vector<mx::array> geglu(const std::vector<mx::array> &in) {
  const auto &x = in[0];
  auto number = [&](float v) { return mx::array(v, x.dtype()); };
  auto inner = mx::add(x, mx::multiply(number(0.044715f), mx::power(x, number(3))));
  auto t = mx::tanh(mx::multiply(number(0.7978845608028654f), inner));
  return {mx::multiply(mx::multiply(mx::multiply(number(0.5f), x), mx::add(number(1), t)), in[1])};
}

bridge_made bridge_geglu(uint64_t owner, bridge_array *gate, bridge_array *up) {
  return making(owner, [&] { return fused<geglu>({flat(gate), flat(up)})[0]; });
}

// As mlx-lm's swiglu_oai: of gate, up, the limit, the limit below, one and alpha.
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

bridge_made bridge_rms_norm(uint64_t owner, bridge_array *x, bridge_array *weight, float eps) {
  return making(owner, [&] {
    int rows = x->value.shape(0), width = weight->value.shape(0), runs = static_cast<int>(x->value.size()) / rows / width;
    auto in = runs == 1 ? flat(x) : mx::reshape(x->value, {rows, runs, width});
    return mx::fast::rms_norm(in, weight->value, eps);
  });
}

// Columns [from, to) of every run.
bridge_made bridge_part(uint64_t owner, bridge_array *x, int32_t run, int32_t from, int32_t to) {
  return making(owner, [&] {
    auto in = flat(x);
    int rows = in.shape(0), runs = in.shape(1) / run;
    return mx::slice(mx::reshape(in, {rows, runs, run}), {0, 0, from}, {rows, runs, to});
  });
}

bridge_made bridge_sigmoid_gate(uint64_t owner, bridge_array *x, bridge_array *gate) {
  return making(owner, [&] {
    auto in = flat(x);
    return mx::astype(mx::multiply(in, mx::sigmoid(flat(gate))), in.dtype());
  });
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

// A list of numbers on the device, from an earlier layer if that had the same.
static const mx::array &list_of(std::vector<int32_t> wanted) {
  auto found = self.lists.find(wanted);
  if (found == self.lists.end()) {
    auto made = mx::array(wanted.data(), mx::Shape{static_cast<int>(wanted.size())}, mx::int32);
    found = self.lists.emplace(std::move(wanted), std::move(made)).first;
  }
  return found->second;
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
    auto grown = [&](mx::array turned) { // behind, as mlx-lm rounds it
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

bridge_slab *bridge_slab_new(int32_t layers, int32_t capacity, bridge_kv_shape shape) {
  try {
    return new bridge_slab{std::vector<slab_layer>(static_cast<size_t>(layers)), capacity, shape};
  } catch (...) {
    return nullptr;
  }
}

bridge_status bridge_slab_free(uint64_t owner, bridge_slab *slab) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { delete slab; });
}

bridge_status bridge_type(uint64_t owner, bridge_array *a, int32_t *type) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto t = a->value.dtype();
    *type = t == mx::float16 ? BRIDGE_FLOAT16 : t == mx::bfloat16 ? BRIDGE_BFLOAT16 : BRIDGE_FLOAT32;
  });
}

} // extern "C"

namespace {

// Slots [from, to) of a slab's array.
mx::array slots_of(const mx::array &a, int from, int to) {
  if (from == 0 && to == a.shape(0)) {
    return a;
  }
  return mx::slice(a, {from, 0, 0, 0}, {to, a.shape(1), a.shape(2), a.shape(3)});
}

// Closes the gap of a slot; without any slot nothing is held.
void close_gap(std::optional<slab_array> &held, int slot) {
  const auto &a = held->value;
  int n = a.shape(0);
  if (n == 1) {
    held.reset();
  } else if (slot == 0) {
    held = {mx::contiguous(slots_of(a, 1, n))};
  } else if (slot == n - 1) {
    held = {mx::contiguous(slots_of(a, 0, n - 1))};
  } else {
    held = {mx::concatenate({slots_of(a, 0, slot), slots_of(a, slot + 1, n)}, 0)};
  }
}

// Puts a slot, wide enough for capacity tokens, behind the last.
void put_behind(std::optional<slab_array> &held, mx::array slot, int capacity) {
  if (int missing = capacity - slot.shape(2); missing > 0) {
    slot = mx::pad(slot, {2}, mx::Shape{0}, mx::Shape{missing}, mx::array(0, slot.dtype()));
  }
  held = {held ? mx::concatenate({held->value, slot}, 0) : mx::contiguous(slot)};
}

// How many layers of a large slab are rearranged before they are waited for:
// what exists twice meanwhile is that many. Small slabs are rearranged when the
// step that wants them is computed.
constexpr size_t layers_at_once = 4, small_slab = 64 << 20;

size_t bytes_of(const bridge_slab &slab) {
  size_t bytes = 0;
  for (const auto &layer : slab.layers) {
    bytes += layer.keys ? 2 * layer.keys->value.nbytes() : 0;
  }
  return bytes;
}

// Rearranges every layer of slabs.
template <class F> void rearrange(std::vector<bridge_slab *> slabs, F &&change) {
  std::vector<mx::array> changed;
  size_t layers = slabs[0]->layers.size(), bytes = 0;
  for (auto *slab : slabs) {
    bytes += bytes_of(*slab);
  }
  for (size_t i = 0; i < layers; i++) {
    change(i);
    if (bytes <= small_slab) {
      continue;
    }
    for (auto *slab : slabs) {
      if (auto &layer = slab->layers[i]; layer.keys) {
        changed.push_back(layer.keys->value);
        changed.push_back(layer.values->value);
      }
    }
    if ((i + 1) % layers_at_once == 0 || i + 1 == layers) {
      mx::eval(std::move(changed));
      changed = {};
    }
  }
}

} // namespace

extern "C" {

bridge_status bridge_slab_move(uint64_t owner, bridge_slab *from, int32_t slot, bridge_slab *to) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    mx::Shape one{1, to->shape.kv_heads, to->capacity, to->shape.size};
    auto type = type_of(to->shape.type);
    std::vector<bridge_slab *> slabs{to};
    if (from != nullptr) {
      slabs.push_back(from);
    }
    rearrange(slabs, [&](size_t i) {
      auto &target = to->layers[i];
      if (from == nullptr) {
        put_behind(target.keys, mx::zeros(one, type), to->capacity);
        put_behind(target.values, mx::zeros(one, type), to->capacity);
        return;
      }
      auto &source = from->layers[i];
      put_behind(target.keys, slots_of(source.keys->value, slot, slot + 1), to->capacity);
      put_behind(target.values, slots_of(source.values->value, slot, slot + 1), to->capacity);
      close_gap(source.keys, slot);
      close_gap(source.values, slot);
    });
  });
}

bridge_status bridge_slab_remove(uint64_t owner, bridge_slab *slab, int32_t slot) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    rearrange({slab}, [&](size_t i) {
      close_gap(slab->layers[i].keys, slot);
      close_gap(slab->layers[i].values, slot);
    });
  });
}

} // extern "C"

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

// What is held, to be written in place. The framework does so if nothing else
// holds the buffer, and copies it otherwise; but a step that was started holds
// what it reads until it ends, so a step that is built meanwhile would copy the
// whole slab. What was started needs the buffer and not its owner, so a new
// owner takes it over. The buffer lives until the last step that reads it has
// ended: a step ends before the one that is built on it, and the last one holds
// the last owner.
const mx::array &in_place(slab_array &held) {
  auto &a = held.value;
  if (held.written && a.status() != mx::array::Status::unscheduled && a.data_shared_ptr().use_count() > 1) {
    mx::array::Data owner(std::move(*a.data_shared_ptr()));
    a.set_data(std::move(owner), a.data_size(), a.strides(), a.flags(), a.offset());
  }
  return a;
}

// Writes fresh rows [slots, heads, length, size] into the slots from first on,
// from a token on. The old handle goes before anything is computed, so that
// its buffer is reused. Where all of a slab is written, the framework would give the
// fresh rows back themselves, whose buffer others may own, and in another order.
void place(std::optional<slab_array> &held, mx::array fresh, int first, int start) {
  mx::Shape from{first, 0, start, 0}, to{first + fresh.shape(0), fresh.shape(1), start + fresh.shape(2), fresh.shape(3)};
  fresh = mx::astype(std::move(fresh), held->value.dtype());
  if (fresh.shape() == held->value.shape()) {
    fresh = mx::contiguous(device_copy(fresh));
  }
  held = {mx::slice_update(in_place(*held), std::move(fresh), std::move(from), std::move(to)), true};
}

// The CUDA driver's own copies. The framework would move a buffer that the host
// reads or writes to memory that both share, page by page (H100: half a gigabyte a
// second).
struct driver_copies {
  int (*to_host)(void *, unsigned long long, size_t);
  int (*to_device)(unsigned long long, const void *, size_t);
};

const driver_copies *driver() {
  static const driver_copies found = [] {
    driver_copies out{};
    if (void *library = on_gpu() && mx::cu::is_available() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : nullptr) {
      out.to_host = reinterpret_cast<decltype(out.to_host)>(dlsym(library, "cuMemcpyDtoH_v2"));
      out.to_device = reinterpret_cast<decltype(out.to_device)>(dlsym(library, "cuMemcpyHtoD_v2"));
    }
    return out;
  }();
  return found.to_host != nullptr && found.to_device != nullptr ? &found : nullptr;
}

// Where the numbers of an array that was computed lie on a device of CUDA's, as
// MLX 0.32.4 has it (backend/cuda/allocator.h).
unsigned long long on_device(const mx::array &a) {
  struct buffer {
    void *data;
    size_t size;
    int device;
  };
  const auto *b = static_cast<const buffer *>(a.buffer().ptr());
  if (b == nullptr || b->size < a.nbytes() || a.offset() != 0 || !a.flags().row_contiguous) {
    throw std::runtime_error("an array does not lie as it is to be copied");
  }
  return reinterpret_cast<unsigned long long>(b->data);
}

void wants(int result) {
  if (result != 0) {
    throw std::runtime_error("the CUDA driver did not copy: error " + std::to_string(result));
  }
}

// The numbers of an array that was computed, in their order, to the host.
void copy_from(mx::array &a, uint8_t *dst) {
  if (const auto *d = driver()) {
    return wants(d->to_host(dst, on_device(a), a.nbytes()));
  }
  std::memcpy(dst, a.data<uint8_t>(), a.nbytes());
}

// An array of what lies at src, where the device reads it quickly.
mx::array copy_in(mx::Dtype type, mx::Shape shape, const uint8_t *src) {
  auto a = mx::zeros(std::move(shape), type);
  mx::eval(a);
  if (const auto *d = driver()) {
    wants(d->to_device(on_device(a), src, a.nbytes()));
  } else {
    std::memcpy(a.data<uint8_t>(), src, a.nbytes());
  }
  return a;
}

// Copies out [first, last) of the third axis of a slot, of each array, through
// one array of their own: where the host reads a buffer of CUDA's, it moves all of
// it to itself, some milliseconds each time.
void copy_out(const std::vector<mx::array> &all, int slot, int first, int last, uint8_t *&dst) {
  std::vector<mx::array> parts;
  bool alike = true;
  for (const auto &a : all) {
    auto end = a.shape();
    end[0] = slot + 1;
    end[2] = last < 0 ? end[2] : last;
    parts.push_back(mx::slice(a, {slot, 0, first, 0}, std::move(end)));
    alike = alike && parts.back().shape() == parts[0].shape() && parts.back().dtype() == parts[0].dtype();
  }
  if (alike && parts.size() > 1) {
    parts = {mx::concatenate(std::move(parts), 0)};
  } else {
    for (auto &p : parts) {
      p = mx::contiguous(on_gpu() && mx::cu::is_available() ? device_copy(p) : p);
    }
  }
  mx::eval(parts);
  for (auto &p : parts) {
    copy_from(p, dst);
    dst += p.nbytes();
  }
}

// Copies out what a slot of a slab holds, some layers at a time: on CUDA as many
// as have so many bytes.
constexpr size_t copied_at_once = 64 << 20;

void copy_slot(const bridge_slab &slab, int slot, int first, int last, uint8_t *dst) {
  size_t together = layers_at_once;
  if (on_gpu() && mx::cu::is_available()) {
    const auto &keys = slab.layers[0].keys->value, &values = slab.layers[0].values->value;
    size_t tokens = static_cast<size_t>(last < 0 ? keys.shape(2) : last - first);
    size_t layer = (keys.nbytes() + values.nbytes()) / static_cast<size_t>(keys.shape(0)) / static_cast<size_t>(keys.shape(2)) * tokens;
    together = std::max<size_t>(1, copied_at_once / std::max<size_t>(1, layer));
  }
  for (size_t at = 0; at < slab.layers.size(); at += together) {
    std::vector<mx::array> all;
    for (size_t i = at; i < std::min(at + together, slab.layers.size()); i++) {
      all.push_back(slab.layers[i].keys->value);
      all.push_back(slab.layers[i].values->value);
    }
    copy_out(all, slot, first, last, dst);
  }
}

// An array of the host's, with what lies at src, which moves behind it.
mx::array from_host(mx::Dtype type, mx::Shape shape, const uint8_t *&src) {
  void *memory = nullptr;
  auto out = host_array(type, std::move(shape), &memory);
  std::memcpy(memory, src, out.nbytes());
  src += out.nbytes();
  return out;
}

// Computes what was put into slots, some layers at a time.
template <class F> void put_layers(bridge_slab &slab, F &&put) {
  std::vector<mx::array> changed;
  for (size_t i = 0; i < slab.layers.size(); i++) {
    auto &layer = slab.layers[i];
    put(layer.keys);
    put(layer.values);
    changed.push_back(layer.keys->value);
    changed.push_back(layer.values->value);
    if ((i + 1) % layers_at_once == 0 || i + 1 == slab.layers.size()) {
      mx::eval(std::move(changed));
      changed = {};
    }
  }
}

// Puts what was saved of some tokens, all layers of a block behind one another,
// into a slot, from a token on.
void put_blocks(bridge_slab &slab, int slot, int from, const bridge_block *blocks, int32_t n) {
  std::vector<mx::array> whole, changed;
  for (int32_t i = 0; i < n; i++) {
    whole.push_back(copy_in(type_of(slab.shape.type), {2 * static_cast<int>(slab.layers.size()), slab.shape.kv_heads, blocks[i].length, slab.shape.size}, blocks[i].bytes));
  }
  int half = 0; // of the layers in every block: keys, then values
  auto put = [&](std::optional<slab_array> &held) {
    std::vector<mx::array> parts;
    for (const auto &w : whole) {
      parts.push_back(rows_of(w, half, half + 1));
    }
    half++;
    place(held, parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 2), slot, from);
    changed.push_back(held->value);
  };
  for (auto &layer : slab.layers) {
    put(layer.keys);
    put(layer.values);
  }
  mx::eval(std::move(changed));
}

// So many bytes of blocks at once.
void put_whole(bridge_slab &slab, int slot, const bridge_block *blocks, int32_t n, int64_t at_once) {
  int64_t token = 2 * static_cast<int64_t>(slab.layers.size()) * slab.shape.kv_heads * slab.shape.size * static_cast<int64_t>(mx::size_of(type_of(slab.shape.type)));
  for (int32_t i = 0, from = 0, length = 0; i < n; from += length) {
    int32_t first = i;
    for (length = 0; i < n && (i == first || (length + blocks[i].length) * token <= at_once); i++) {
      length += blocks[i].length;
    }
    put_blocks(slab, slot, from, blocks + first, i - first);
  }
}

} // namespace

extern "C" {

bridge_status bridge_whole(uint64_t owner, int64_t bytes) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { self.whole = bytes; });
}

bridge_status bridge_slab_save(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t first, int32_t last, uint8_t *dst) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { copy_slot(*slab, slot, first, last, dst); });
}

bridge_made bridge_slab_stage(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t first, int32_t last) {
  return making(owner, [&] {
    std::vector<mx::array> parts;
    for (const auto &layer : slab->layers) {
      for (const auto *a : {&layer.keys->value, &layer.values->value}) {
        parts.push_back(mx::slice(*a, {slot, 0, first, 0}, {slot + 1, a->shape(1), last, a->shape(3)}));
      }
    }
    auto out = mx::concatenate(std::move(parts), 0);
    if (on_gpu()) {
      mx::async_eval({out});
    } else { // a copy of the processor's looks for its source when it runs (in_place)
      mx::eval({out});
    }
    return out;
  });
}

bridge_status bridge_staged(uint64_t owner, bridge_array *a, uint8_t *dst) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    mx::eval({a->value});
    copy_from(a->value, dst);
  });
}

bridge_status bridge_slab_slide(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t from, int32_t length) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto slide = [&](std::optional<slab_array> &held) {
      const auto &a = held->value;
      auto kept = mx::contiguous(mx::slice(a, {slot, 0, from, 0}, {slot + 1, a.shape(1), from + length, a.shape(3)}));
      place(held, std::move(kept), slot, 0);
    };
    rearrange({slab}, [&](size_t i) {
      slide(slab->layers[i].keys);
      slide(slab->layers[i].values);
    });
  });
}

bridge_status bridge_slab_put(uint64_t owner, bridge_slab *slab, int32_t slot, const bridge_block *blocks, int32_t n) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    if (self.whole > 0) {
      put_whole(*slab, slot, blocks, n, self.whole);
      return;
    }
    auto type = type_of(slab->shape.type);
    size_t heads = static_cast<size_t>(slab->shape.kv_heads), row = static_cast<size_t>(slab->shape.size) * mx::size_of(type);
    int32_t length = 0;
    for (int32_t i = 0; i < n; i++) {
      length += blocks[i].length;
    }
    size_t half = 0; // of the layers in every block: keys, then values
    put_layers(*slab, [&](std::optional<slab_array> &held) {
      void *memory = nullptr;
      auto joined = host_array(type, {1, slab->shape.kv_heads, length, slab->shape.size}, &memory);
      auto *to = static_cast<uint8_t *>(memory);
      for (size_t head = 0; head < heads; head++) {
        for (int32_t i = 0; i < n; i++) {
          size_t bytes = static_cast<size_t>(blocks[i].length) * row;
          std::memcpy(to, blocks[i].bytes + (half * heads + head) * bytes, bytes);
          to += bytes;
        }
      }
      half++;
      place(held, std::move(joined), slot, 0);
    });
  });
}

} // extern "C"

namespace {

// What one attention has in common with the others of its step.
struct attention {
  const bridge_attend_spec *spec;
  std::optional<mx::array> sinks;

  // Tokens [first, end) of slots [from, to).
  mx::array seen(const mx::array &a, int from, int to, int first, int end) const {
    return mx::slice(a, {from, 0, first, 0}, {to, spec->kv_heads, end, spec->size});
  }

  int first_seen(int position) const { return spec->window > 0 ? std::max(0, position + 1 - spec->window) : 0; }
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

// Whether ragged.h has a kernel for keys of a type and size.
bool has_ragged(mx::Dtype type, int size) { return runs_kernels() && type == mx::bfloat16 && (size == 64 || size == 128); }

// Segments of slabs, whose keys and values come in pairs, by the kernel of
// ragged.h: [rows, heads*size].
mx::array multiply_ragged(const mx::array &q, const std::vector<mx::array> &slabs, const mx::array &list, int tiles, int rows, int heads) {
  static thread_local const auto kernel = mx::fast::cuda_kernel("ragged", {"q", "tiles", "k0", "v0", "k1", "v1", "k2", "v2", "k3", "v3"}, {"y"}, ragged_source,
                                                                std::string(few_rows_product) + ragged_rounding + ragged_numbers);
  std::vector<mx::array> in{q, list};
  for (size_t i = 0; i < 2 * ragged_slabs; i++) { // those that there are not are not read
    in.push_back(slabs[i < slabs.size() ? i : i % 2]);
  }
  int kv_heads = slabs[0].shape(1), size = slabs[0].shape(3);
  return kernel(in, {mx::Shape{rows, heads * size}}, {q.dtype()}, {tiles * ragged_threads, kv_heads, 1}, {ragged_threads, 1, 1}, {{"SIZE", size}}, std::nullopt, false, {})[0];
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
// kernel would be planned anew for every length: heads that share keys are rows
// of one product.
mx::array attend_by_products(const attention &a, const mx::array &q, const mx::array &k, const mx::array &v, const mx::array &mask) {
  const auto *spec = a.spec;
  int length = q.shape(2), keys = k.shape(2), group = spec->heads / spec->kv_heads;
  auto rows = mx::reshape(mx::multiply(q, mx::array(spec->scale, q.dtype())), {spec->kv_heads, group * length, spec->size});
  auto scores = mx::matmul(rows, mx::swapaxes(mx::squeeze(k, 0), 1, 2));
  scores = mx::reshape(scores, {spec->kv_heads, group, length, keys});
  scores = mx::where(mask, scores, mx::array(-std::numeric_limits<float>::infinity(), scores.dtype()));
  if (a.sinks) {
    auto sinks = mx::broadcast_to(mx::reshape(mx::astype(*a.sinks, scores.dtype()), {spec->kv_heads, group, 1, 1}), {spec->kv_heads, group, length, 1});
    scores = mx::softmax(mx::concatenate({sinks, scores}, 3), 3, true);
    scores = mx::slice(scores, {0, 0, 0, 1}, {spec->kv_heads, group, length, keys + 1});
  } else {
    scores = mx::softmax(scores, 3, true);
  }
  auto out = mx::matmul(mx::reshape(scores, {spec->kv_heads, group * length, keys}), mx::squeeze(v, 0));
  return mx::reshape(out, {1, spec->heads, length, spec->size});
}

// One segment's queries against what its slot holds: [length, heads*size].
mx::array attend_alone(const attention &a, const mx::array &q, const bridge_segment &seg) {
  const auto *spec = a.spec;
  int end = seg.start + seg.length, first = a.first_seen(seg.start);
  auto &held = seg.slab->layers.at(static_cast<size_t>(spec->layer));
  auto keys = a.seen(held.keys->value, seg.slot, seg.slot + 1, first, end), values = a.seen(held.values->value, seg.slot, seg.slot + 1, first, end);
  auto attend = [&] {
    if (seg.how == BRIDGE_PRODUCTS) {
      return attend_by_products(a, q, keys, values, mask_of_piece(a, seg.start, first, end));
    }
    std::string mode = seg.length > 1 ? "causal" : "";
    std::optional<mx::array> mask;
    if (seg.length > 1 && spec->window > 0 && end > spec->window) {
      mask = mask_of_piece(a, seg.start, first, end);
      mode = "array";
    }
    return mx::fast::scaled_dot_product_attention(q, keys, values, spec->scale, mode, mask, a.sinks);
  };
  auto out = attend();
  if (seg.length > 1) {
    out = mx::transpose(out, {0, 2, 1, 3});
  }
  return mx::reshape(out, {seg.length, spec->heads * spec->size});
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

// Above so many tokens, rows of different lengths are attended one by one: a
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
      parts.push_back(attend_alone(a, by_slot(q, {t.rows[static_cast<size_t>(s - t.first)]}, spec->heads, spec->size), {t.slab, s, t.positions[static_cast<size_t>(s - t.first)], 1, BRIDGE_FUSED}));
    }
    return mx::concatenate(std::move(parts), 0);
  }
  std::optional<mx::array> mask;
  if (*low != *high) {
    auto all = t.positions;
    std::replace(all.begin(), all.end(), -1, *low);
    mask = mask_of(a, all, first, end);
  }
  auto out = mx::fast::scaled_dot_product_attention(by_slot(q, t.asking(), spec->heads, spec->size), a.seen(held.keys->value, t.first, t.first + n, first, end),
                                                    a.seen(held.values->value, t.first, t.first + n, first, end), spec->scale, mask ? "array" : "", mask, a.sinks);
  out = mx::reshape(out, {n, spec->heads * spec->size});
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
  bool has = has_ragged(q.dtype(), a.spec->size) && a.spec->window == 0 && !a.sinks;
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

// Writes the keys and values of a step: of ragged segments in a slab together,
// and of groups.
void write_all(const attention &a, const mx::array &k, const mx::array &v, const std::map<bridge_slab *, together> &groups, const bridge_segment *segments, int32_t n) {
  auto layer = static_cast<size_t>(a.spec->layer);
  int heads = a.spec->kv_heads, size = a.spec->size;
  auto spreads = spread_out(segments, n);
  for (const auto &[slab, s] : spreads) {
    auto &held = slab->layers[layer];
    place_rows(held.keys, by_slot(k, s.rows, heads, size), s.slots, s.positions);
    place_rows(held.values, by_slot(v, s.rows, heads, size), s.slots, s.positions);
  }
  for (const auto &[slab, t] : groups) {
    if (!t.ragged) { // two of a slab are spread out
      auto &held = slab->layers[layer];
      place_all(held.keys, by_slot(k, t.of_slots(t.rows), heads, size), t);
      place_all(held.values, by_slot(v, t.of_slots(t.rows), heads, size), t);
    }
  }
  int row = 0;
  for (int32_t i = 0; i < n; row += segments[i].length, i++) {
    const auto &seg = segments[i];
    bool done = seg.how == BRIDGE_RAGGED ? spreads.count(seg.slab) > 0 : seg.length == 1 && groups.count(seg.slab) > 0;
    if (!done) {
      auto &held = seg.slab->layers[layer];
      place(held.keys, by_head(k, row, seg.length, heads, size), seg.slot, seg.start);
      place(held.values, by_head(v, row, seg.length, heads, size), seg.slot, seg.start);
    }
  }
}

} // namespace

extern "C" {

bridge_made bridge_attend(uint64_t owner, bridge_array *q, bridge_array *k, bridge_array *v, const bridge_attend_spec *spec, const float *sinks, const bridge_segment *segments, int32_t n) {
  return making(owner, [&] {
    attention a{spec, std::nullopt};
    if (sinks != nullptr) {
      a.sinks = mx::astype(mx::array(sinks, mx::Shape{spec->heads}, mx::float32), q->value.dtype());
    }
    auto groups = gather(segments, n);
    // Everything is written before anything is read: what reads an array that is
    // then written would make the framework copy it.
    write_all(a, k->value, v->value, groups, segments, n);
    attended out;
    for (auto &[slab, t] : groups) {
      if (!t.ragged) {
        out.parts.push_back(attend_together(a, q->value, t));
        auto rows = t.of_slots(t.rows);
        out.order.insert(out.order.end(), rows.begin(), rows.end());
      }
    }
    attend_ragged(a, q->value, segments, n, out);
    int row = 0;
    for (int32_t i = 0; i < n; row += segments[i].length, i++) {
      const auto &seg = segments[i];
      if (seg.how != BRIDGE_RAGGED && (seg.length > 1 || groups.count(seg.slab) == 0)) {
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

namespace {

// The logarithm of what stays of a state, and the part that is written: of
// decay, bias, rate, beta and zero.
std::vector<mx::array> gates_of(const std::vector<mx::array> &in) {
  auto soft = mx::logaddexp(mx::add(wide(in[0]), wide(in[1])), in[4]);
  return {mx::negative(mx::multiply(mx::exp(wide(in[2])), soft)), mx::sigmoid(wide(in[3]))};
}

// SiLU of a convolution, and its last operand in float32: of the rows that meet
// each tap, and as many taps.
std::vector<mx::array> convolution_of(const std::vector<mx::array> &in) {
  size_t taps = in.size() / 2;
  auto last = wide(in[taps - 1]);
  auto sum = mx::multiply(taps > 1 ? wide(in[0]) : last, in[taps]);
  for (size_t j = 1; j < taps; j++) {
    sum = mx::add(sum, mx::multiply(j + 1 < taps ? wide(in[j]) : last, in[taps + j]));
  }
  return {mx::multiply(sum, mx::sigmoid(sum)), last};
}

// What a row writes: of its values, what the state says, decay and beta.
std::vector<mx::array> news_of(const std::vector<mx::array> &in) {
  return {mx::multiply(mx::subtract(in[0], mx::multiply(in[1], mx::exp(in[2]))), in[3])};
}

// A state behind a row: of the state, decay, the key and what is written.
std::vector<mx::array> state_of(const std::vector<mx::array> &in) {
  return {mx::add(mx::multiply(in[0], mx::exp(in[1])), mx::multiply(in[2], in[3]))};
}

// One recurrent layer of a step, in float32.
struct recurrence {
  const bridge_state_shape *shape;
  mx::array mixed;       // queries, keys and values of all rows: [T, channels], in their own type
  mx::array decay, beta; // [T, value_heads]; decay is its logarithm
  mx::array taps;        // [taps, channels]

  int channels() const { return 2 * shape->key_heads * shape->key_size + shape->value_heads * shape->value_size; }

  recurrence(const bridge_recur_operands *in, const bridge_state_shape *of)
      : shape(of), mixed(mx::concatenate({flat(in->q), flat(in->k), flat(in->v)}, 1)), decay(0.0f), beta(0.0f),
        taps(mx::transpose(mx::reshape(wide(flat(in->kernel)), {channels(), of->taps}))) {
    auto gates = fused<gates_of>({flat(in->decay), flat(in->bias), flat(in->rate), flat(in->beta), mx::array(0.0f)});
    decay = gates[0], beta = gates[1];
  }

  // Of the convolution's result [T, channels]: the heads of queries, keys or
  // values, [T, value_heads, size]; queries and keys have a length of 1, and
  // queries are divided by the root of their size.
  mx::array queries(const mx::array &x) const { return units(x, 0, 1 / static_cast<float>(shape->key_size)); }
  mx::array keys(const mx::array &x) const { return units(x, shape->key_heads * shape->key_size, 1 / std::sqrt(static_cast<float>(shape->key_size))); }
  // The norm's mean is the square of the length by the size, and so is what is
  // added to it.
  mx::array units(const mx::array &x, int from, float scale) const {
    int rows = x.shape(0), width = shape->key_heads * shape->key_size;
    auto all = mx::reshape(mx::slice(x, {0, from}, {rows, from + width}), {rows, shape->key_heads, shape->key_size});
    auto unit = mx::fast::rms_norm(all, mx::broadcast_to(mx::array(scale), {shape->key_size}), 1e-6f / static_cast<float>(shape->key_size));
    int times = shape->value_heads / shape->key_heads;
    return times == 1 ? unit : mx::repeat(unit, times, 1);
  }
  mx::array values(const mx::array &x) const {
    int rows = x.shape(0), from = 2 * shape->key_heads * shape->key_size;
    return mx::reshape(mx::slice(x, {0, from}, {rows, x.shape(1)}), {rows, shape->value_heads, shape->value_size});
  }
};

// Rows that meet each tap and the taps, as convolution_of wants them.
std::vector<mx::array> convolved(const recurrence &r, std::vector<mx::array> rows) {
  for (int j = 0, taps = static_cast<int>(rows.size()); j < taps; j++) {
    rows.push_back(mx::slice(r.taps, {j, 0}, {j + 1, r.channels()}));
  }
  return fused<convolution_of>(rows);
}

// What is read behind rows, and the state then.
struct recurred {
  mx::array out, seen, matrix;
};

// One row of each of n states: out is [n, value_heads*value_size].
recurred recur_once(const recurrence &r, const mx::array &rows, const mx::array &decay, const mx::array &beta, const mx::array &seen, const mx::array &matrix) {
  const auto *shape = r.shape;
  int n = rows.shape(0), heads = shape->value_heads, k = shape->key_size, v = shape->value_size, width = r.channels(), before = shape->taps - 1;
  std::vector<mx::array> meet;
  for (int j = 0; j < before; j++) {
    meet.push_back(mx::squeeze(mx::slice(seen, {0, 0, j, 0}, {n, 1, j + 1, width}), {1, 2}));
  }
  meet.push_back(rows);
  auto both = convolved(r, meet);
  auto &mixed = both[0];
  auto key = r.keys(mixed);
  mx::Shape by_head{n, heads, 1, 1};
  auto past = mx::reshape(decay, by_head);
  auto said = mx::matmul(mx::reshape(key, {n, heads, 1, k}), matrix);
  auto news = fused<news_of>({mx::reshape(r.values(mixed), {n, heads, 1, v}), said, past, mx::reshape(beta, by_head)})[0];
  auto state = fused<state_of>({matrix, past, mx::reshape(key, {n, heads, k, 1}), news})[0];
  auto out = mx::matmul(mx::reshape(r.queries(mixed), {n, heads, 1, k}), state);
  auto last = before == 0 ? seen : mx::concatenate({mx::slice(seen, {0, 0, 1, 0}, seen.shape()), mx::reshape(both[1], {n, 1, 1, width})}, 2);
  return {mx::reshape(out, {n, heads * v}), last, state};
}

// Rows of a sequence are taken so many at once: what they write depends on one
// another through a triangle of products of keys, which is solved first.
constexpr int rows_at_once = 64;

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

// The inverse of I + a, where a has numbers below its diagonal alone. Those of
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

// All rows of one sequence [T, channels] through the delta rule, and the state
// [heads, key_size, value_size] then: out is [T, value_heads*value_size].
// Within a block, what each row writes is solved for at once (Yang et al.,
// https://arxiv.org/abs/2412.06464); blocks follow one another.
std::pair<mx::array, mx::array> delta_rule(const recurrence &r, const mx::array &mixed, const mx::array &decay, const mx::array &beta, mx::array state) {
  int rows = mixed.shape(0), heads = r.shape->value_heads, size = 1;
  while (size < rows && size < rows_at_once) {
    size *= 2;
  }
  int blocks = (rows + size - 1) / size;
  auto blocked = [&](const mx::array &x) { return in_blocks(x, blocks, size); };
  auto q = blocked(r.queries(mixed)), k = blocked(r.keys(mixed)), v = blocked(r.values(mixed));
  auto takes = blocked(mx::expand_dims(beta, -1));
  auto past = mx::cumsum(blocked(mx::expand_dims(decay, -1)), 2); // [heads, blocks, size, 1]
  auto below = square(size, [](int row, int column) { return column <= row; });
  auto between = mx::exp(mx::where(mx::greater(below, mx::array(0.5f)), mx::subtract(past, mx::swapaxes(past, -1, -2)), mx::array(-std::numeric_limits<float>::infinity())));
  auto turned = mx::swapaxes(k, -1, -2), since = mx::exp(past);
  auto above = square(size, [](int row, int column) { return column < row; });
  auto solved = inverse(mx::multiply(mx::multiply(mx::multiply(takes, mx::matmul(k, turned)), between), above), size);
  auto wanted = mx::matmul(solved, mx::multiply(takes, v)), said = mx::matmul(solved, mx::multiply(mx::multiply(takes, since), k));
  auto scores = mx::multiply(mx::matmul(q, turned), between);
  auto asked = mx::multiply(q, since);
  auto end = mx::slice(past, {0, 0, size - 1, 0}, {heads, blocks, size, 1});
  auto left = mx::swapaxes(mx::multiply(k, mx::exp(mx::subtract(end, past))), -1, -2);
  auto stays = mx::exp(end);
  std::vector<mx::array> outs;
  for (int b = 0; b < blocks; b++) {
    auto of = [&](const mx::array &x) { return mx::reshape(mx::slice(x, {0, b, 0, 0}, {heads, b + 1, x.shape(2), x.shape(3)}), {heads, x.shape(2), x.shape(3)}); };
    auto news = mx::subtract(of(wanted), mx::matmul(of(said), state));
    outs.push_back(mx::add(mx::matmul(of(asked), state), mx::matmul(of(scores), news)));
    state = mx::add(mx::multiply(state, of(stays)), mx::matmul(of(left), news));
  }
  auto out = blocks == 1 ? outs[0] : mx::concatenate(std::move(outs), 1);
  out = mx::transpose(mx::slice(out, {0, 0, 0}, {heads, rows, r.shape->value_size}), {1, 0, 2});
  return {mx::reshape(out, {rows, heads * r.shape->value_size}), state};
}

// All rows of one sequence, whose state is [1, ...].
recurred recur_all(const recurrence &r, const mx::array &rows, const mx::array &decay, const mx::array &beta, const mx::array &seen, const mx::array &matrix) {
  int n = rows.shape(0), width = r.channels(), taps = r.shape->taps;
  auto window = mx::concatenate({mx::reshape(seen, {taps - 1, width}), wide(rows)}, 0);
  std::vector<mx::array> meet;
  for (int j = 0; j < taps; j++) {
    meet.push_back(rows_of(window, j, j + n));
  }
  auto mixed = convolved(r, meet)[0];
  auto state = mx::reshape(matrix, {matrix.shape(1), matrix.shape(2), matrix.shape(3)});
  auto [out, after] = delta_rule(r, mixed, decay, beta, state);
  auto last = mx::contiguous(mx::reshape(rows_of(window, n, n + taps - 1), {1, 1, taps - 1, width}));
  return {out, last, mx::reshape(after, matrix.shape())};
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

} // namespace

extern "C" {

bridge_status bridge_state_join(uint64_t owner, bridge_slab *to, const bridge_state_shape *shape) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    int channels = 2 * shape->key_heads * shape->key_size + shape->value_heads * shape->value_size;
    rearrange({to}, [&](size_t i) {
      put_behind(to->layers[i].keys, mx::zeros({1, 1, shape->taps - 1, channels}, mx::float32), 0);
      put_behind(to->layers[i].values, mx::zeros({1, shape->value_heads, shape->key_size, shape->value_size}, mx::float32), 0);
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
    recurrence r(in, shape);
    scattered out;
    auto at = static_cast<size_t>(layer);
    std::map<bridge_slab *, bool> done;
    int row = 0;
    for (int32_t i = 0; i < n; row += segments[i].length, i++) {
      const auto &seg = segments[i];
      auto &held = seg.slab->layers.at(at);
      if (seg.length > 1) {
        auto of = [&](const mx::array &x) { return rows_of(x, row, row + seg.length); };
        auto one = recur_all(r, of(r.mixed), of(r.decay), of(r.beta), slots_of(held.keys->value, seg.slot, seg.slot + 1), slots_of(held.values->value, seg.slot, seg.slot + 1));
        put_slots(held.keys, one.seen, {seg.slot});
        put_slots(held.values, one.matrix, {seg.slot});
        out.parts.push_back(one.out);
        for (int32_t j = 0; j < seg.length; j++) {
          out.order.push_back(row + j);
        }
      } else if (!std::exchange(done[seg.slab], true)) {
        auto ones = in_slots(segments, n, seg.slab);
        auto of = [&](const mx::array &x) { return rows_at(x, ones.rows); };
        auto all = recur_once(r, of(r.mixed), of(r.decay), of(r.beta), slots_at(held.keys->value, ones.slots), slots_at(held.values->value, ones.slots));
        put_slots(held.keys, all.seen, ones.slots);
        put_slots(held.values, all.matrix, ones.slots);
        out.parts.push_back(all.out);
        out.order.insert(out.order.end(), ones.rows.begin(), ones.rows.end());
      }
    }
    return mx::astype(out.joined(), in->q->value.dtype());
  });
}

} // extern "C"

// Encoders.
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

bridge_made bridge_layer_norm(uint64_t owner, bridge_array *x, bridge_array *weight, bridge_array *bias, float eps) {
  return making(owner, [&] { return mx::fast::layer_norm(flat(x), weight->value, bias->value, eps); });
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

} // extern "C"
