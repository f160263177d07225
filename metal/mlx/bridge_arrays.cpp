//go:build mlx

// The thread that attached, the framework's memory, and arrays from and to the host.

#include "bridge_internal.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <variant>

#include "mlx/allocator.h"
#include "mlx/backend/cuda/cuda.h"
#include "mlx/device.h"
#include "mlx/memory.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"
#include "mlx/version.h"

using namespace bridge;

namespace {

std::atomic<uint64_t> owners{0};
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

// Whether an error of the framework means that memory ran out. The framework has
// no exception type for it (allocator.cpp of its metal, cuda and no_gpu back ends).
bool is_out_of_memory(const char *text) {
  for (const char *part : {"out of memory", "Unable to allocate", "maximum allowed buffer size", "Resource limit", "memory allocation", "Insufficient Memory"}) {
    if (std::strstr(text, part) != nullptr) {
      return true;
    }
  }
  return false;
}

// become_owner marks this thread, unless another of its back ends did.
uint64_t become_owner() {
  if (self.owner == 0) {
    self.owner = owners.fetch_add(1) + 1;
  }
  return self.owner;
}

mx::Shape shape_of(const int32_t *shape, int32_t dims) { return mx::Shape(shape, shape + dims); }

} // namespace

namespace bridge {

thread_local thread_state self;
thread_local std::optional<mx::Stream> second_stream;
std::atomic<uint64_t> entered{0};

bridge_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc &) {
    return {BRIDGE_MEMORY, copy_text("the allocator has no memory left")};
  } catch (const std::exception &e) {
    return {is_out_of_memory(e.what()) ? BRIDGE_MEMORY : BRIDGE_FAILED, copy_text(e.what())};
  } catch (...) {
    return {BRIDGE_FAILED, copy_text("an exception without a text")};
  }
}

bridge_made hand_over(mx::array a) {
  int64_t bytes = static_cast<int64_t>(a.nbytes());
  return {new bridge_array{std::move(a)}, bytes, {BRIDGE_OK, nullptr}};
}

bool on_gpu() { return mx::default_device() == mx::Device::gpu; }

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

mx::array wide(const mx::array &x) { return mx::astype(x, mx::float32); }

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

mx::array rows_of(const mx::array &x, int from, int to) {
  if (from == 0 && to == x.shape(0)) {
    return x;
  }
  auto start = mx::Shape(x.ndim(), 0), stop = x.shape();
  start[0] = from;
  stop[0] = to;
  return mx::slice(x, start, stop);
}

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

mx::array device_copy(const mx::array &a) {
  auto whole = a.itemsize() == 4 ? mx::uint32 : a.itemsize() == 2 ? mx::uint16 : mx::uint8;
  return mx::view(mx::bitwise_or(mx::view(a, whole), mx::array(0, whole)), a.dtype());
}

mx::array flat(const bridge_array *x) {
  return x->value.ndim() <= 2 ? x->value : mx::reshape(x->value, {x->value.shape(0), -1});
}

const mx::array &list_of(std::vector<int32_t> wanted) {
  auto found = self.lists.find(wanted);
  if (found == self.lists.end()) {
    auto made = mx::array(wanted.data(), mx::Shape{static_cast<int>(wanted.size())}, mx::int32);
    found = self.lists.emplace(std::move(wanted), std::move(made)).first;
  }
  return found->second;
}

} // namespace bridge

extern "C" {

bridge_attached bridge_attach(void) {
  return guarded<bridge_attached>(become_owner(), [](bridge_attached &out) {
    // Without the variable, CUDA kernels are launched one by one: a graph saves
    // nothing where every step has other lengths, and costs the host more than the
    // launches (H100, 16 decode sequences and prompts: 38 ms a step, 28 without).
    setenv("MLX_USE_CUDA_GRAPHS", "0", 0);
    // And half a step is handed over at once. The framework hands over 100 launches, each
    // time with an event and a call of the host (H200, GLM-4.7-Flash: 5% of a step).
    if (mx::cu::is_available()) {
      setenv("MLX_MAX_OPS_PER_BUFFER", "500", 0);
    }
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
    if (second_stream) {
      mx::synchronize(*second_stream);
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

// Concatenates the rows of matrices; those of cut ones part by part.
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
          layer.each([&](const auto &held) { also(held->value); });
        }
      }
    }
    run(std::move(rest));
  });
}

// The same values, computed and row-contiguous. Another operation is started only
// where they are not contiguous already: it would wait for all that was started
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
    copy_from(x, dst);
  });
}

bridge_status bridge_read_ids(uint64_t owner, bridge_array *a, int32_t *dst, int64_t n) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto x = plain(a->value);
    copy_from(x, dst);
  });
}

bridge_status bridge_type(uint64_t owner, bridge_array *a, int32_t *type) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    auto t = a->value.dtype();
    *type = t == mx::float16 ? BRIDGE_FLOAT16 : t == mx::bfloat16 ? BRIDGE_BFLOAT16 : BRIDGE_FLOAT32;
  });
}

} // extern "C"
