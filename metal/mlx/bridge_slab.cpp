//go:build mlx

// Slabs of a cache: room for requests, and what is saved and restored of them.

#include "bridge_internal.h"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

#include "mlx/backend/cuda/cuda.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"

using namespace bridge;

namespace {

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
  if (b == nullptr || a.offset() < 0 || b->size < static_cast<size_t>(a.offset()) + a.nbytes() || !a.flags().row_contiguous) {
    throw std::runtime_error("an array does not lie as it is to be copied");
  }
  return reinterpret_cast<unsigned long long>(b->data) + static_cast<unsigned long long>(a.offset());
}

// Buffers of up to this many bytes lie where the host reads them as well.
constexpr size_t shared_bytes = 8;

void wants(int result) {
  if (result != 0) {
    throw std::runtime_error("the CUDA driver did not copy: error " + std::to_string(result));
  }
}

} // namespace

namespace bridge {

void copy_from(mx::array &a, void *dst) {
  if (const auto *d = driver(); d != nullptr && a.nbytes() > shared_bytes) {
    return wants(d->to_host(dst, on_device(a), a.nbytes()));
  }
  std::memcpy(dst, a.data<uint8_t>(), a.nbytes());
}

} // namespace bridge

namespace {

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

// How many layers of a large slab are rearranged before they are waited for:
// what exists twice meanwhile is that many. Small slabs are rearranged when the
// step that wants them is computed.
constexpr size_t layers_at_once = 4, small_slab = 64 << 20;

size_t bytes_of(const bridge_slab &slab) {
  size_t bytes = 0;
  for (const auto &layer : slab.layers) {
    bytes += (layer.keys ? layer.keys->value.nbytes() : 0) + (layer.values ? layer.values->value.nbytes() : 0);
  }
  return bytes;
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

// How many bytes copy_slot copies at a time on CUDA. Elsewhere it copies
// layers_at_once layers.
constexpr size_t copied_at_once = 64 << 20;

// Writes saved tokens into a slot, from a token on. A block has the layers one
// after another.
void put_blocks(bridge_slab &slab, int slot, int from, const bridge_block *blocks, int32_t n) {
  std::vector<mx::array> whole, changed;
  for (int32_t i = 0; i < n; i++) {
    whole.push_back(copy_in(type_of(slab.shape.type), {(slab.shape.value_size > 0 ? 2 : 1) * static_cast<int>(slab.layers.size()), slab.shape.kv_heads, blocks[i].length, slab.shape.size}, blocks[i].bytes));
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
    layer.each(put);
  }
  mx::eval(std::move(changed));
}

// Writes blocks, at most at_once bytes of them at a time.
void put_whole(bridge_slab &slab, int slot, const bridge_block *blocks, int32_t n, int64_t at_once) {
  int64_t token = static_cast<int64_t>(slab.layers.size()) * slab.shape.kv_heads * (slab.shape.size + slab.shape.value_size) * static_cast<int64_t>(mx::size_of(type_of(slab.shape.type)));
  for (int32_t i = 0, from = 0, length = 0; i < n; from += length) {
    int32_t first = i;
    for (length = 0; i < n && (i == first || (length + blocks[i].length) * token <= at_once); i++) {
      length += blocks[i].length;
    }
    put_blocks(slab, slot, from, blocks + first, i - first);
  }
}

} // namespace

namespace bridge {

mx::array slots_of(const mx::array &a, int from, int to) {
  if (from == 0 && to == a.shape(0)) {
    return a;
  }
  return mx::slice(a, {from, 0, 0, 0}, {to, a.shape(1), a.shape(2), a.shape(3)});
}

void append_slot(std::optional<slab_array> &held, mx::array slot, int capacity) {
  if (int missing = capacity - slot.shape(2); missing > 0) {
    slot = mx::pad(slot, {2}, mx::Shape{0}, mx::Shape{missing}, mx::array(0, slot.dtype()));
  }
  held = {held ? mx::concatenate({held->value, slot}, 0) : mx::contiguous(slot)};
}

void rearrange(const std::vector<bridge_slab *> &slabs, const std::function<void(size_t)> &change) {
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
        layer.each([&](auto &held) { changed.push_back(held->value); });
      }
    }
    if ((i + 1) % layers_at_once == 0 || i + 1 == layers) {
      mx::eval(std::move(changed));
      changed = {};
    }
  }
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

// The old handle is released before anything is computed, so that its buffer is reused.
// Where all of a slab is written, the framework would give the fresh rows back
// themselves, whose buffer others may own, and in another order.
void place(std::optional<slab_array> &held, mx::array fresh, int first, int start) {
  mx::Shape from{first, 0, start, 0}, to{first + fresh.shape(0), fresh.shape(1), start + fresh.shape(2), fresh.shape(3)};
  fresh = mx::astype(std::move(fresh), held->value.dtype());
  if (fresh.shape() == held->value.shape()) {
    fresh = mx::contiguous(device_copy(fresh));
  }
  held = {mx::slice_update(in_place(*held), std::move(fresh), std::move(from), std::move(to)), true};
}

void copy_slot(const bridge_slab &slab, int slot, int first, int last, uint8_t *dst) {
  size_t together = layers_at_once;
  if (on_gpu() && mx::cu::is_available()) {
    const auto &keys = slab.layers[0].keys->value;
    size_t all = keys.nbytes() + (slab.layers[0].values ? slab.layers[0].values->value.nbytes() : 0);
    size_t tokens = static_cast<size_t>(last < 0 ? keys.shape(2) : last - first);
    size_t layer = all / static_cast<size_t>(keys.shape(0)) / static_cast<size_t>(keys.shape(2)) * tokens;
    together = std::max<size_t>(1, copied_at_once / std::max<size_t>(1, layer));
  }
  for (size_t at = 0; at < slab.layers.size(); at += together) {
    std::vector<mx::array> all;
    for (size_t i = at; i < std::min(at + together, slab.layers.size()); i++) {
      all.push_back(slab.layers[i].keys->value);
      if (slab.layers[i].values) {
        all.push_back(slab.layers[i].values->value);
      }
    }
    copy_out(all, slot, first, last, dst);
  }
}

void put_layers(bridge_slab &slab, const std::function<void(std::optional<slab_array> &)> &put) {
  std::vector<mx::array> changed;
  for (size_t i = 0; i < slab.layers.size(); i++) {
    slab.layers[i].each([&](auto &held) {
      put(held);
      changed.push_back(held->value);
    });
    if ((i + 1) % layers_at_once == 0 || i + 1 == slab.layers.size()) {
      mx::eval(std::move(changed));
      changed = {};
    }
  }
}

} // namespace bridge

extern "C" {

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

bridge_status bridge_slab_move(uint64_t owner, bridge_slab *from, int32_t slot, bridge_slab *to) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    mx::Shape key{1, to->shape.kv_heads, to->capacity, to->shape.size}, value{1, to->shape.kv_heads, to->capacity, to->shape.value_size};
    auto type = type_of(to->shape.type);
    std::vector<bridge_slab *> slabs{to};
    if (from != nullptr) {
      slabs.push_back(from);
    }
    rearrange(slabs, [&](size_t i) {
      auto &target = to->layers[i];
      if (from == nullptr) {
        append_slot(target.keys, mx::zeros(key, type), to->capacity);
        if (to->shape.value_size > 0) {
          append_slot(target.values, mx::zeros(value, type), to->capacity);
        }
        return;
      }
      auto &source = from->layers[i];
      append_slot(target.keys, slots_of(source.keys->value, slot, slot + 1), to->capacity);
      if (source.values) {
        append_slot(target.values, slots_of(source.values->value, slot, slot + 1), to->capacity);
      }
      source.each([&](auto &held) { close_gap(held, slot); });
    });
  });
}

bridge_status bridge_slab_remove(uint64_t owner, bridge_slab *slab, int32_t slot) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    rearrange({slab}, [&](size_t i) { slab->layers[i].each([&](auto &held) { close_gap(held, slot); }); });
  });
}

bridge_status bridge_whole(uint64_t owner, int64_t bytes) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { self.whole = bytes; });
}

bridge_status bridge_slab_save(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t first, int32_t last, uint8_t *dst) {
  return guarded<bridge_status>(owner, [&](bridge_status &) { copy_slot(*slab, slot, first, last, dst); });
}

bridge_made bridge_slab_stage(uint64_t owner, bridge_slab *slab, int32_t slot, int32_t first, int32_t last) {
  return making(owner, [&] {
    std::vector<mx::array> parts;
    for (auto &layer : slab->layers) {
      layer.each([&](auto &held) {
        const auto &a = held->value;
        auto part = mx::slice(a, {slot, 0, first, 0}, {slot + 1, a.shape(1), last, a.shape(3)});
        parts.push_back(slab->shape.value_size == slab->shape.size ? part : mx::flatten(part));
      });
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
    rearrange({slab}, [&](size_t i) { slab->layers[i].each(slide); });
  });
}

bridge_status bridge_slab_put(uint64_t owner, bridge_slab *slab, int32_t slot, const bridge_block *blocks, int32_t n) {
  return guarded<bridge_status>(owner, [&](bridge_status &) {
    const auto &shape = slab->shape;
    if (self.whole > 0 && (shape.value_size == 0 || shape.value_size == shape.size)) {
      put_whole(*slab, slot, blocks, n, self.whole);
      return;
    }
    auto type = type_of(shape.type);
    size_t heads = static_cast<size_t>(shape.kv_heads);
    int32_t length = 0;
    for (int32_t i = 0; i < n; i++) {
      length += blocks[i].length;
    }
    size_t before = 0; // bytes of a token in every block that come before
    put_layers(*slab, [&](std::optional<slab_array> &held) {
      void *memory = nullptr;
      size_t row = static_cast<size_t>(held->value.shape(3)) * mx::size_of(type);
      auto joined = host_array(type, {1, shape.kv_heads, length, held->value.shape(3)}, &memory);
      auto *to = static_cast<uint8_t *>(memory);
      for (size_t head = 0; head < heads; head++) {
        for (int32_t i = 0; i < n; i++) {
          auto tokens = static_cast<size_t>(blocks[i].length);
          std::memcpy(to, blocks[i].bytes + (before + head * row) * tokens, tokens * row);
          to += tokens * row;
        }
      }
      before += heads * row;
      place(held, std::move(joined), slot, 0);
    });
  });
}

} // extern "C"
