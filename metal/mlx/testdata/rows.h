// What kernels for products with a few rows have in common: x [tokens, in] times
// w [out, in] of 4 bits, compared with plain float64.

#ifndef METALFLEET_TESTDATA_ROWS_H
#define METALFLEET_TESTDATA_ROWS_H

#include "cuda.h"

#include <optional>
#include <random>

struct product {
  int tokens, in, out;
  std::vector<bfloat16> x, scales, biases, y;
  std::vector<unsigned> w;
};

// What is outside of the results must stay as it is.
constexpr bfloat16 untouched = 0x7fff;

// What a number gates by SiLU, which is 1, or by GELU, rounded after each operation.
inline double gated_of(int by, double x, double up) {
  auto r = [](double v) { return static_cast<double>(wide(__float2bfloat16(static_cast<float>(v)))); };
  if (by == 1) {
    return r(x * r(1 / (1 + std::exp(-x)))) * up;
  }
  const double inner = r(x + r(r(0.044715) * r(x * x * x)));
  return r(r(0.5 * x) * r(1 + r(std::tanh(r(r(0.7978845608028654) * inner))))) * up;
}

// The largest error of what run leaves in y, as a part of the root of the sum of
// squares that a result is made of. What is still skipped is no result.
inline double worst_of(int tokens, int in, int out, const std::function<void(product &)> &run, std::optional<bfloat16> skipped = std::nullopt) {
  std::mt19937 random(static_cast<unsigned>(tokens * 131 + in));
  std::uniform_real_distribution<float> number(-1, 1);
  auto numbers = [&](int n, float scale) {
    std::vector<bfloat16> v(static_cast<size_t>(n));
    std::generate(v.begin(), v.end(), [&] { return __float2bfloat16(scale * number(random)); });
    return v;
  };
  product p{tokens, in, out, numbers(tokens * in, 1), numbers(out * in / 64, 0.1f), numbers(out * in / 64, 1), {}, {}};
  p.w.resize(static_cast<size_t>(out * in / 8));
  std::generate(p.w.begin(), p.w.end(), std::ref(random));
  p.y.assign(static_cast<size_t>(tokens * out + 16), untouched);
  run(p);
  double worst = 0;
  for (int t = 0; t < tokens; t++) {
    for (int o = 0; o < out; o++) {
      if (p.y[static_cast<size_t>(t * out + o)] == skipped) {
        continue;
      }
      double want = 0, squares = 0;
      for (int i = 0; i < in; i++) {
        const unsigned q = p.w[static_cast<size_t>(o * (in / 8) + i / 8)] >> (4 * (i % 8)) & 15;
        const auto group = static_cast<size_t>(o * (in / 64) + i / 64);
        const double product = (static_cast<double>(wide(p.scales[group])) * q + wide(p.biases[group])) * wide(p.x[static_cast<size_t>(t * in + i)]);
        want += product;
        squares += product * product;
      }
      const double error = std::fabs(wide(p.y[static_cast<size_t>(t * out + o)]) - want) / std::sqrt(squares);
      worst = worse(worst, error);
    }
  }
  const bool beyond = std::any_of(p.y.end() - 16, p.y.end(), [](bfloat16 v) { return v != untouched; });
  return beyond ? 1 : worst;
}

#endif
