// Runs the CUDA kernel few_rows of few_rows.h on a processor. numbers.inc and
// kernel.inc are its text. Prints the largest error for each case.

#include "rows.h"

namespace {

#include "numbers.inc"

template <int TILES, bool WHOLE> void kernel(const bfloat16 *x, const int *x_shape, const unsigned *w, const int *w_shape, const bfloat16 *scales, const bfloat16 *biases, bfloat16 *y) {
#include "kernel.inc"
}

void run(product &p) {
  const int x_shape[] = {p.tokens, p.in}, w_shape[] = {p.out, p.in / 8}, warps = std::min(8, (p.in + 511) / 512);
  for (int b = 0; b < p.out / 16; b++) {
    run_block(b, 0, warps * 32, [&] {
      const auto whole = p.tokens <= 8 ? kernel<1, true> : kernel<2, true>, other = p.tokens <= 8 ? kernel<1, false> : kernel<2, false>;
      const auto of = p.in % 512 == 0 ? whole : other;
      of(p.x.data(), x_shape, p.w.data(), w_shape, p.scales.data(), p.biases.data(), p.y.data());
    });
  }
}

} // namespace

int main() {
  for (int tokens : {1, 3, 8, 9, 16}) {
    for (int in : {512, 1536, 4608, 64, 704, 5440}) {
      std::printf("%d %d %d %.6f\n", tokens, in, 32, worst_of(tokens, in, 32, run));
    }
  }
}
