// Runs the CUDA kernel of few_rows.h on a processor and compares it with plain
// float64. numbers.inc and kernel.inc are the kernel's text.
//
// Prints the largest error, as a part of the root of the sum of squares that a
// result is made of, for each case.

#include "cuda.h"

#include <random>

namespace {

#include "numbers.inc"

template <int TILES> void kernel(const bfloat16 *x, const int *x_shape, const unsigned *w, const int *w_shape, const bfloat16 *scales, const bfloat16 *biases, bfloat16 *y) {
#include "kernel.inc"
}

// What is outside of the results must stay as it is.
constexpr bfloat16 untouched = 0x7fff;

double worst_of(int tokens, int in, int out) {
  std::mt19937 random(static_cast<unsigned>(tokens * 131 + in));
  std::uniform_real_distribution<float> number(-1, 1);
  auto numbers = [&](int n, float scale) {
    std::vector<bfloat16> v(static_cast<size_t>(n));
    std::generate(v.begin(), v.end(), [&] { return __float2bfloat16(scale * number(random)); });
    return v;
  };
  auto x = numbers(tokens * in, 1), scales = numbers(out * in / 64, 0.1f), biases = numbers(out * in / 64, 1);
  std::vector<unsigned> w(static_cast<size_t>(out * in / 8));
  std::generate(w.begin(), w.end(), std::ref(random));
  std::vector<bfloat16> y(static_cast<size_t>(tokens * out + 16), untouched);
  const int x_shape[] = {tokens, in}, w_shape[] = {out, in / 8}, warps = std::min(8, in / 512);
  for (int b = 0; b < out / 16; b++) {
    run_block(b, 0, warps * 32, [&] {
      constexpr decltype(&kernel<1>) kernels[] = {kernel<1>, kernel<2>, kernel<3>, kernel<4>, kernel<8>};
      kernels[std::min(4, (tokens + 7) / 8 - 1)](x.data(), x_shape, w.data(), w_shape, scales.data(), biases.data(), y.data());
    });
  }
  double worst = 0;
  for (int t = 0; t < tokens; t++) {
    for (int o = 0; o < out; o++) {
      double want = 0, squares = 0;
      for (int i = 0; i < in; i++) {
        const unsigned q = w[static_cast<size_t>(o * (in / 8) + i / 8)] >> (4 * (i % 8)) & 15;
        const auto group = static_cast<size_t>(o * (in / 64) + i / 64);
        const double product = (static_cast<double>(wide(scales[group])) * q + wide(biases[group])) * wide(x[static_cast<size_t>(t * in + i)]);
        want += product;
        squares += product * product;
      }
      const double error = std::fabs(wide(y[static_cast<size_t>(t * out + o)]) - want) / std::sqrt(squares);
      worst = worse(worst, error);
    }
  }
  const bool beyond = std::any_of(y.end() - 16, y.end(), [](bfloat16 v) { return v != untouched; });
  return beyond ? 1 : worst;
}

} // namespace

int main() {
  for (int tokens : {1, 3, 8, 9, 16, 17, 27, 32, 33, 57, 64}) {
    for (int in : {512, 1536, 4608}) {
      std::printf("%d %d %.6f\n", tokens, in, worst_of(tokens, in, 32));
    }
  }
}
