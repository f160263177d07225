// Runs the CUDA kernel few_rows of few_rows.h on a processor. numbers.inc, gate.inc and
// kernel.inc are its text. Prints the largest error for each case, and then how far gated
// halves are from what their products come to, as a part of 1 and that.

#include "rows.h"

inline unsigned short __bfloat16_as_ushort(bfloat16 v) { return v; }

namespace {

#include "numbers.inc"
#include "gate.inc"

template <int TILES, bool WHOLE, int GATE> void kernel(const bfloat16 *x, const int *x_shape, const unsigned *w, const int *w_shape, const bfloat16 *scales, const bfloat16 *biases, bfloat16 *y) {
#include "kernel.inc"
}

template <int GATE> void run(product &p) {
  const int x_shape[] = {p.tokens, p.in}, w_shape[] = {p.out, p.in / 8}, warps = std::min(8, (p.in + 511) / 512);
  for (int b = 0; b < p.out / 16; b++) {
    run_block(b, 0, warps * 32, [&] {
      const auto whole = p.tokens <= 8 ? kernel<1, true, GATE> : kernel<2, true, GATE>, other = p.tokens <= 8 ? kernel<1, false, GATE> : kernel<2, false, GATE>;
      const auto of = p.in % 512 == 0 ? whole : other;
      of(p.x.data(), x_shape, p.w.data(), w_shape, p.scales.data(), p.biases.data(), p.y.data());
    });
  }
}

template <int GATE> double error_of_gate(int tokens, int in, int out) {
  double worst = 0;
  worst_of(tokens, in, out, [&](product &p) {
    run<0>(p);
    auto gated = p;
    std::fill(gated.y.begin(), gated.y.end(), untouched);
    run<GATE>(gated);
    for (int i = 0; i < tokens * out / 2; i++) {
      const double x = wide(p.y[static_cast<size_t>(i / (out / 2) * out + i % (out / 2))]), up = wide(p.y[static_cast<size_t>(i / (out / 2) * out + i % (out / 2) + out / 2)]);
      const double want = gated_of(GATE, x, up);
      worst = worse(worst, std::fabs(wide(gated.y[static_cast<size_t>(i)]) - want) / (1 + std::fabs(want)));
    }
    const bool beyond = std::any_of(gated.y.begin() + tokens * out / 2, gated.y.end(), [](bfloat16 v) { return v != untouched; });
    worst = beyond ? 1e9 : worst;
  });
  return worst;
}

} // namespace

int main() {
  for (int tokens : {1, 3, 8, 9, 16}) {
    for (int in : {512, 1536, 4608, 64, 704, 5440}) {
      std::printf("%d %d %d %.6f\n", tokens, in, 32, worst_of(tokens, in, 32, run<0>));
    }
  }
  std::printf("%d %d %d %.6f\n%d %d %d %.6f\n", 3, 704, 64, error_of_gate<1>(3, 704, 64), 9, 1024, 96, error_of_gate<2>(9, 1024, 96));
}
