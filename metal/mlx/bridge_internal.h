//go:build mlx

// What the files of the bridge share. Go sees bridge.h alone.
//
// Every function of bridge.h runs in guarded or making, which keep other threads
// out and exceptions in. Start reading there.
#ifndef METALFLEET_BRIDGE_INTERNAL_H
#define METALFLEET_BRIDGE_INTERNAL_H

#include "bridge.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "mlx/array.h"
#include "mlx/compile.h"
#include "mlx/stream.h"

namespace mx = mlx::core;

struct bridge_array {
  mx::array value;
};

// Keys or values of one layer: [slots, kvHeads, capacity, size]. Values that are
// within keys are not there.
struct slab_array {
  mx::array value;
  // written is true once a step wrote into it: then no other array shares its
  // buffer, except those through which steps read it.
  bool written = false;
};

struct slab_layer {
  std::optional<slab_array> keys, values;

  // each visits what is stored: keys, then values.
  template <class F> void each(F &&visit) {
    visit(keys);
    if (values) {
      visit(values);
    }
  }
};

struct bridge_slab {
  std::vector<slab_layer> layers;
  int capacity;
  bridge_kv_shape shape;
};

namespace bridge {

// State of a thread that attached. Lists of numbers that operations need on the
// device are kept until the computation ends, because every layer of a step uses
// the same ones.
struct thread_state {
  uint64_t owner = 0;
  int attached = 0;
  std::map<std::vector<int32_t>, mx::array> lists;
  std::map<std::vector<int32_t>, mx::array> masks;
  std::vector<float> periods;
  std::optional<mx::array> frequencies;
  // The chosen experts that were sorted last, their order and its tiles (experts.h).
  std::vector<mx::array> sorted;
  // Products with at least this many weights are computed on two streams.
  int64_t halved_from = 1 << 24;
  // Saved blocks are uploaded unchanged, this many bytes at a time, and split on
  // the device; if 0, the host splits them.
  int64_t whole = 0;

  void forget() {
    lists.clear();
    masks.clear();
    sorted.clear();
    periods.clear();
    frequencies.reset();
  }
};

extern thread_local thread_state self;
// A processor's second stream, created at its first use. A stream is a thread
// that never ends, so it outlives the back end.
extern thread_local std::optional<mx::Stream> second_stream;
extern std::atomic<uint64_t> entered;

// The status of the exception that is being handled. Call it in a catch clause.
bridge_status status_of_exception() noexcept;

inline bridge_status &status_of(bridge_status &s) { return s; }
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
  } catch (...) {
    status = status_of_exception();
  }
  return out;
}

bridge_made hand_over(mx::array a);

// making is guarded for functions that make one array.
template <class F> bridge_made making(uint64_t owner, F &&f) noexcept {
  return guarded<bridge_made>(owner, [&](bridge_made &out) { out = hand_over(f()); });
}

bool on_gpu();

// Whether kernels of ours run here: what they ask of the tensor cores.
bool runs_kernels();

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

// Arrays (bridge_arrays.cpp).

mx::array wide(const mx::array &x); // in float32

mx::Dtype type_of(int32_t type);

// Rows [from, to) of x [T, ...]; all of them are x itself.
mx::array rows_of(const mx::array &x, int from, int to);

// An array whose memory the host fills before it is first used.
mx::array host_array(mx::Dtype type, mx::Shape shape, void **memory);

// The same bits as the result of an operation, which has a buffer of its own.
mx::array device_copy(const mx::array &a);

// Numbers as [T, D]. Norms of heads and ropes leave theirs as [T, heads, 1, size],
// because what comes next mostly wants them so.
mx::array flat(const bridge_array *x);

// A list of numbers on the device, from an earlier layer if that had the same.
const mx::array &list_of(std::vector<int32_t> wanted);

// Operations on rows (bridge_ops.cpp).

// The parts that a kernel, which was not started yet, joins to a; nullptr if it joins none.
const std::vector<mx::array> *joined_by_kernel(const mx::array &a);

// The results of experts and the shares by which a kernel, which was not started yet,
// adds them up to a; nullptr if a is anything else.
const std::vector<mx::array> *combined_by_kernel(const mx::array &a);

// The norm x, which was not started yet, of the first columns of longer rows, by one
// kernel (bridge_norm.cpp); nothing where x is anything else.
std::optional<mx::array> norm_of_cut(const mx::array &x);

// Attention of one token of each segment (bridge_step.cpp).

// The first token that one at a position sees.
inline int first_seen_from(const bridge_attend_spec &spec, int position) { return spec.window > 0 && position >= spec.window ? position + 1 - spec.window : 0; }

// Whether attend_step.h has a kernel for a step: of one token of each segment, to latent
// keys or by heads of a size that the framework has none for.
bool suits_step(const mx::array &q, const bridge_attend_spec &spec, const bridge_segment *segments, int32_t n);

// Whether that kernel can write new keys and values into the slabs: their arrays were
// computed, and no other array that may be computed later shares their buffers.
bool step_writes(const mx::array *k, const mx::array *v, const bridge_attend_spec &spec, const bridge_segment *segments, int32_t n);

// Attention by that kernel, an array for each slab; order gets their rows of the step.
// What is_new is written by the kernel as well; otherwise it is in the slabs already, if
// there is any.
std::vector<mx::array> attend_step(const mx::array &q, const mx::array *k, const mx::array *v, const bridge_attend_spec &spec, const bridge_segment *segments, int32_t n, bool is_new, std::vector<int32_t> &order);

// Slabs (bridge_slab.cpp).

// The numbers of an array that was computed and is row-contiguous, to the host. The array
// stays on the device: the framework would move it to memory that both share, which the
// host waits for, and so do later kernels that read it.
void copy_from(mx::array &a, void *dst);

// Slots [from, to) of a slab's array.
mx::array slots_of(const mx::array &a, int from, int to);

// Appends a slot, padded to capacity tokens.
void append_slot(std::optional<slab_array> &held, mx::array slot, int capacity);

// Rearranges every layer of slabs.
void rearrange(const std::vector<bridge_slab *> &slabs, const std::function<void(size_t)> &change);

// What is held, to be written in place.
const mx::array &in_place(slab_array &held);

// Writes fresh rows [slots, heads, length, size] into the slots from first on,
// from a token on.
void place(std::optional<slab_array> &held, mx::array fresh, int first, int start);

// Copies out what a slot of a slab holds of tokens [first, last), or all if last
// is negative.
void copy_slot(const bridge_slab &slab, int slot, int first, int last, uint8_t *dst);

// Computes what put writes into each array of each layer, some layers at a time.
void put_layers(bridge_slab &slab, const std::function<void(std::optional<slab_array> &)> &put);

} // namespace bridge

#endif
