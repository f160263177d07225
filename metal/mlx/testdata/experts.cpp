// Runs the CUDA kernels experts_few, or experts_sort and experts_many, of experts.h on
// a processor: numbers.inc, kernel.inc, sort.inc, gate.inc and one.inc are their text. Prints
// the largest error for each case, and of experts_few then how far what a matrix gates of
// another is from what their products come to, as a part of 1 and that.

#include "rows.h"

inline int atomicAdd(int *to, int by) { return std::exchange(*to, *to + by); }
inline unsigned short __bfloat16_as_ushort(bfloat16 v) { return v; }

namespace {

#include "numbers.inc"

#if __has_include("sort.inc")
#define MANY
constexpr int TILE = 32;

template <int EXPERTS> void sort(const int *ids, const int *ids_shape, int *order, int *tiles) {
#include "sort.inc"
}

template <int EXPERTS>
void kernel(const bfloat16 *x, const int *x_shape, const int *order, const int *order_shape, const int *tiles, const unsigned *w, const int *w_shape, const bfloat16 *scales, const bfloat16 *biases, bfloat16 *y) {
#include "kernel.inc"
}
#else
#include "gate.inc"

template <int EXPERTS, int GATE = 0>
void kernel(const bfloat16 *x, const int *x_shape, const int *ids, const int *ids_shape, const unsigned *w, const int *w_shape, const bfloat16 *scales, const bfloat16 *biases, bfloat16 *y) {
#include "kernel.inc"
}

template <int EXPERTS, int GATE>
void gated(const bfloat16 *x, const int *x_shape, const int *ids, const int *ids_shape, const unsigned *w0, const int *w0_shape, const bfloat16 *scales0, const bfloat16 *biases0, const unsigned *w1, const bfloat16 *scales1,
           const bfloat16 *biases1, bfloat16 *y) {
#include "one.inc"
#include "kernel.inc"
}

// Of two matrices of three experts, the rows of one matrix.
template <int GATE> double error_of_gate(int tokens, int in, int out) {
  constexpr int experts = 3;
  std::vector<int> ids;
  for (int i = 0; i < 2 * tokens; i++) {
    ids.push_back((i % 2 + i / 2) % experts);
  }
  double worst = 0;
  worst_of(tokens, in, 2 * experts * out, [&](product &p) {
    const int n = 2 * tokens, x_shape[] = {tokens, in}, w_shape[] = {experts * out, in / 8}, ids_shape[] = {n};
    const auto *w1 = p.w.data() + experts * out * in / 8;
    const auto *scales1 = p.scales.data() + experts * out * in / 64, *biases1 = p.biases.data() + experts * out * in / 64;
    std::vector<bfloat16> gates(static_cast<size_t>(n * out)), ups(gates), y(static_cast<size_t>(n * out + 16), untouched);
    for (int pair = 0; pair < n; pair++) {
      for (int b = 0; b < (out + 15) / 16; b++) {
        run_block(b, pair, 128, [&] { kernel<experts>(p.x.data(), x_shape, ids.data(), ids_shape, p.w.data(), w_shape, p.scales.data(), p.biases.data(), gates.data()); });
        run_block(b, pair, 128, [&] { kernel<experts>(p.x.data(), x_shape, ids.data(), ids_shape, w1, w_shape, scales1, biases1, ups.data()); });
      }
      for (int b = 0; b < out / 8; b++) {
        run_block(b, pair, 128, [&] { gated<experts, GATE>(p.x.data(), x_shape, ids.data(), ids_shape, p.w.data(), w_shape, p.scales.data(), p.biases.data(), w1, scales1, biases1, y.data()); });
      }
    }
    for (size_t i = 0; i < gates.size(); i++) {
      const double want = gated_of(GATE, wide(gates[i]), wide(ups[i]));
      worst = worse(worst, std::fabs(wide(y[i]) - want) / (1 + std::fabs(want)));
    }
    worst = std::any_of(y.end() - 16, y.end(), [](bfloat16 v) { return v != untouched; }) ? 1e9 : worst;
  });
  return worst;
}
#endif

// Experts are the rows of one matrix, of which each token has k: what a token has of an
// expert stands in the columns of that expert, and those of the others stay. Rows of x
// may be longer than those of the matrix.
template <int EXPERTS> double error(int tokens, int in, int out, int k, int longer = 0) {
  std::vector<int> ids;
  for (int i = 0; i < tokens * k; i++) {
    ids.push_back((i % k + i / k * i / k * 3) % EXPERTS);
  }
  return worst_of(tokens, in, EXPERTS * out, [&](product &p) {
    const int n = tokens * k, x_shape[] = {tokens, in + longer}, w_shape[] = {EXPERTS * out, in / 8}, ids_shape[] = {n};
    std::vector<bfloat16> x(static_cast<size_t>(tokens * (in + longer)), bfloat16{0x7fc1});
    for (int t = 0; t < tokens; t++) {
      std::copy_n(p.x.begin() + t * in, in, x.begin() + t * (in + longer));
    }
    std::vector<bfloat16> y(static_cast<size_t>(n * out + 16), untouched);
#ifdef MANY
    std::vector<int> order(static_cast<size_t>(n), -1), tiles(static_cast<size_t>(1 + 3 * (n / TILE + EXPERTS)), -1);
    run_block(0, 0, 64, [&] { sort<EXPERTS>(ids.data(), ids_shape, order.data(), tiles.data()); });
    for (int tile = 0; tile < n / TILE + EXPERTS; tile++) {
      for (int b = 0; b < (out + 127) / 128; b++) {
        run_block(b, tile, 128, [&] { kernel<EXPERTS>(x.data(), x_shape, order.data(), ids_shape, tiles.data(), p.w.data(), w_shape, p.scales.data(), p.biases.data(), y.data()); });
      }
    }
#else
    for (int pair = 0; pair < n; pair++) {
      for (int b = 0; b < (out + 15) / 16; b++) {
        run_block(b, pair, 128, [&] { kernel<EXPERTS>(x.data(), x_shape, ids.data(), ids_shape, p.w.data(), w_shape, p.scales.data(), p.biases.data(), y.data()); });
      }
    }
#endif
    const bool whole = std::all_of(y.end() - 16, y.end(), [](bfloat16 v) { return v == untouched; });
    for (int i = 0; i < n; i++) {
      for (int o = 0; o < out; o++) {
        const auto got = y[static_cast<size_t>(i * out + o)];
        p.y[static_cast<size_t>((i / k * EXPERTS + ids[static_cast<size_t>(i)]) * out + o)] = whole && got != untouched ? got : bfloat16{0x7fc1};
      }
    }
  }, untouched);
}

} // namespace

int main() {
  for (int in : {64, 192, 512, 704}) {
    for (int out : {32, 160}) {
      std::printf("%d %d %d %.6f\n", 1, in, out, error<5>(1, in, out, 2));
      std::printf("%d %d %d %.6f\n", 37, in, out, error<3>(37, in, out, 2, in % 128));
    }
  }
#ifndef MANY
  std::printf("%d %d %d %.6f\n%d %d %d %.6f\n", 3, 704, 32, error_of_gate<1>(3, 704, 32), 2, 64, 96, error_of_gate<2>(2, 64, 96));
#endif
}
