// Runs the CUDA kernels join_runs and geglu of row_kernels.h on a processor. kernel.inc, numbers.inc
// and geglu.inc are their text. Prints how many numbers of joined rows are others than
// wanted for each case, and then the largest error of geglu, as a part of 1 and what was
// wanted.

#include "cuda.h"

#include <random>

inline unsigned short __bfloat16_as_ushort(bfloat16 v) { return v; }

namespace {

#include "numbers.inc"

struct number { // bfloat16, which converts
  bfloat16 bits;
  number(bfloat16 bits = 0x7fc1) : bits(bits) {}
  operator float() const { return wide(bits); }
};

template <int W0, int W1, int W2> void join(const bfloat16 *p0, const int *p0_shape, const bfloat16 *p1, const bfloat16 *p2, bfloat16 *y) {
#include "kernel.inc"
}

void geglu(const number *gate, const int *gate_shape, const int64_t *gate_strides, const number *up, const int64_t *up_strides, number *y) {
#include "geglu.inc"
}

template <int W0, int W1, int W2> int wrong(int rows) {
  const int widths[] = {8 * W0, 8 * W1, 8 * W2}, run = 8 * (W0 + W1 + W2), shape[] = {rows, widths[0]};
  std::vector<bfloat16> parts[3], y(static_cast<size_t>(rows * run + 8), 0x7fc1);
  for (int p = 0; p < 3; p++) {
    for (int i = 0; i < rows * widths[p]; i++) {
      parts[p].push_back(static_cast<bfloat16>(10000 * p + i));
    }
    parts[p].resize(parts[p].size() + 8);
  }
  for (int b = 0; b < (rows * run / 8 + 127) / 128; b++) {
    run_block(b, 0, 128, [&] { join<W0, W1, W2>(parts[0].data(), shape, parts[1].data(), parts[2].data(), y.data()); });
  }
  int out = y[static_cast<size_t>(rows * run)] != 0x7fc1;
  for (int row = 0, at = 0; row < rows; row++) {
    for (int p = 0; p < 3; p++) {
      for (int i = 0; i < widths[p]; i++, at++) {
        out += y[static_cast<size_t>(at)] != 10000 * p + row * widths[p] + i;
      }
    }
  }
  return out;
}

double error_of_geglu() {
  constexpr int rows = 3, width = 100; // parts of rows of 230
  const int shape[] = {rows, width};
  const int64_t strides[] = {230, 1};
  std::mt19937 random(1);
  std::vector<number> both;
  for (int i = 0; i < rows * 230; i++) {
    both.emplace_back(__float2bfloat16(std::uniform_real_distribution<float>(-3, 3)(random)));
  }
  std::vector<number> y(rows * width + 1);
  for (int b = 0; b < 3; b++) {
    run_block(b, 0, 128, [&] { geglu(both.data(), shape, strides, both.data() + 130, strides, y.data()); });
  }
  double worst = y[rows * width].bits == 0x7fc1 ? 0 : 1e9;
  for (int i = 0; i < rows * width; i++) {
    const auto at = static_cast<size_t>(i / width * 230 + i % width);
    const double x = both[at], want = 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) * both[at + 130];
    worst = worse(worst, std::fabs(y[static_cast<size_t>(i)] - want) / (1 + std::fabs(want)));
  }
  return worst;
}

} // namespace

int main() {
  std::printf("%d\n%d\n%d\n%.6f\n", wrong<64, 8, 0>(5), wrong<1, 1, 1>(50), wrong<3, 20, 7>(9), error_of_geglu());
}
