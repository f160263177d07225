// Runs the CUDA kernel of ragged.h on a processor, by its own list, and compares
// it with plain float64. numbers.inc and kernel.inc are the kernel's text.
//
// Prints the largest error, as a part of the root of the sum of squares that a
// result is made of, for each case.

#include "cuda.h"
#include "ragged.h"

#include <random>

namespace {

unsigned ragged_round(float low, float high) { return __float2bfloat16(low) | static_cast<unsigned>(__float2bfloat16(high)) << 16; }

#include "numbers.inc"

using numbers = std::vector<bfloat16>;

template <int SIZE>
void kernel(const bfloat16 *q, const int *tiles, const bfloat16 *k0, const bfloat16 *v0, const bfloat16 *k1, const bfloat16 *v1, const bfloat16 *k2, const bfloat16 *v2,
            const bfloat16 *k3, const bfloat16 *v3, bfloat16 *y) {
#include "kernel.inc"
}

// Not a number: what is outside of the results must stay so, and what nobody
// wrote must not get into one.
constexpr bfloat16 poison = 0x7fc1;

struct slab {
  int slots, capacity;
  numbers keys, values;
};

struct shape { int kv_heads, group, size; };

struct trial {
  shape of;
  std::vector<slab> slabs;
  std::vector<ragged_segment> segments;
  int rows = 0;
  numbers q, y;
  std::mt19937 random{7};

  explicit trial(shape s) : of(s) {}

  int heads() const { return of.kv_heads * of.group; }
  size_t at(int row, int head) const { return static_cast<size_t>(row * heads() + head) * static_cast<size_t>(of.size); }
  size_t at(const ragged_segment &s, int head, int token) const {
    return ((static_cast<size_t>(s.slot) * static_cast<size_t>(of.kv_heads) + static_cast<size_t>(head)) * static_cast<size_t>(s.capacity) + static_cast<size_t>(token)) *
           static_cast<size_t>(of.size);
  }
  bfloat16 number(float scale) { return __float2bfloat16(std::uniform_real_distribution<float>(-scale, scale)(random)); }

  void slab_of(int slots, int capacity) {
    numbers all(static_cast<size_t>(slots) * static_cast<size_t>(of.kv_heads) * static_cast<size_t>(capacity) * static_cast<size_t>(of.size), poison);
    slabs.push_back({slots, capacity, all, all});
  }

  // A segment whose results stand as many rows behind its queries as skipped.
  void segment(int in, int slot, int start, int length, int skipped = 0) {
    auto &s = slabs[static_cast<size_t>(in)];
    segments.push_back({in, slot, s.capacity, start, length, rows, rows + skipped});
    for (int head = 0; head < of.kv_heads; head++) {
      for (int token = 0; token < start + length; token++) {
        for (int i = 0; i < of.size; i++) {
          s.keys[at(segments.back(), head, token) + static_cast<size_t>(i)] = number(1);
          s.values[at(segments.back(), head, token) + static_cast<size_t>(i)] = number(1);
        }
      }
    }
    rows += length;
  }

  void run(float scale) {
    q.assign(at(rows + 8, 0), poison);
    std::generate(q.begin(), q.begin() + static_cast<std::ptrdiff_t>(at(rows, 0)), [&] { return number(4); });
    y.assign(at(rows + 8, 0), poison);
    const auto list = ragged_list(heads(), of.kv_heads, scale, segments);
    auto of_slab = [&](size_t i) -> slab & { return slabs[i < slabs.size() ? i : 0]; };
    for (int tile = 0; tile < ragged_tiles(list); tile++) {
      for (int head = 0; head < of.kv_heads; head++) {
        run_block(tile, head, ragged_threads, [&] {
          (of.size == 128 ? kernel<128> : kernel<64>)(q.data(), list.data(), of_slab(0).keys.data(), of_slab(0).values.data(), of_slab(1).keys.data(), of_slab(1).values.data(),
                                                      of_slab(2).keys.data(), of_slab(2).values.data(), of_slab(3).keys.data(), of_slab(3).values.data(), y.data());
        });
      }
    }
  }

  // The error of one query's result.
  double error(const ragged_segment &s, int token, int head, float scale) const {
    const auto &in = slabs[static_cast<size_t>(s.slab)];
    const auto *query = &q[at(s.row + token, head)];
    std::vector<double> powers;
    double sum = 0, worst = 0;
    for (int key = 0; key <= s.start + token; key++) {
      double dot = 0;
      for (int i = 0; i < of.size; i++) {
        dot += static_cast<double>(wide(query[i])) * wide(in.keys[at(s, head / of.group, key) + static_cast<size_t>(i)]);
      }
      powers.push_back(std::exp(dot * scale));
      sum += powers.back();
    }
    for (int i = 0; i < of.size; i++) {
      double want = 0, squares = 0;
      for (size_t key = 0; key < powers.size(); key++) {
        const double part = powers[key] / sum * wide(in.values[at(s, head / of.group, static_cast<int>(key)) + static_cast<size_t>(i)]);
        want += part;
        squares += part * part;
      }
      const double off = std::fabs(wide(y[at(s.out + token, head) + static_cast<size_t>(i)]) - want) / std::sqrt(squares);
      worst = worse(worst, off);
    }
    return worst;
  }

  void report(const char *name) {
    const float scale = 1 / std::sqrt(static_cast<float>(of.size));
    run(scale);
    double worst = 0;
    std::vector<bool> answered(static_cast<size_t>(rows + 8));
    for (const auto &s : segments) {
      for (int token = 0; token < s.length; token++) {
        answered[static_cast<size_t>(s.out + token)] = true;
        // Long pieces by some of their tokens: those at the ends of tiles.
        if (s.length > 4 && s.start > 100 && token % 16 > 1 && token + 1 < s.length) {
          continue;
        }
        for (int head = 0; head < heads(); head++) {
          worst = worse(worst, error(s, token, head, scale));
        }
      }
    }
    for (int row = 0; row < rows + 8; row++) {
      if (!answered[static_cast<size_t>(row)] && std::any_of(&y[at(row, 0)], &y[0] + at(row + 1, 0), [](bfloat16 v) { return v != poison; })) {
        worst = 1;
      }
    }
    std::printf("%s heads %d of %d by %d: %.6f\n", name, of.group, of.kv_heads, of.size, worst);
  }
};

} // namespace

int main() {
  for (int group : {1, 4, 8}) {
    for (int length : {1, 2, 16, 17, 48, 64}) {
      for (int start : {0, 1, 63, 64, 1000}) {
        if (start == 1000 && length * group > 70) {
          continue; // many tiles of many keys take long, and are like others
        }
        trial t({1, group, 128});
        t.slab_of(2, start + length + 3);
        t.segment(0, 1, start, length);
        t.report(("length " + std::to_string(length) + " start " + std::to_string(start)).c_str());
      }
    }
  }
  for (auto of : {shape{2, 4, 128}, shape{3, 3, 128}, shape{2, 8, 64}, shape{1, 24, 64}, shape{4, 1, 64}}) {
    trial t(of);
    for (int capacity : {72, 136, 264, 328}) {
      t.slab_of(5, capacity);
    }
    t.segment(0, 4, 20, 1);
    t.segment(2, 0, 130, 1);
    t.segment(2, 3, 10, 1);
    t.segment(3, 1, 300, 28);
    t.segment(1, 2, 0, 9);
    t.segment(0, 0, 71, 1, 3);
    t.segment(2, 4, 255, 3, 5);
    t.report("a step");
  }
}
