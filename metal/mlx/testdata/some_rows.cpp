// Runs the CUDA kernel some_rows of few_rows.h on a processor. numbers.inc and
// kernel.inc are its text. Prints the largest error for each case.

#include "rows.h"

namespace {

#include "numbers.inc"

void kernel(const bfloat16 *x, const int *x_shape, const unsigned *w, const int *w_shape, const bfloat16 *scales, const bfloat16 *biases, bfloat16 *y) {
#include "kernel.inc"
}

void run(product &p) {
  const int x_shape[] = {p.tokens, p.in}, w_shape[] = {p.out, p.in / 8};
  for (int tile = 0; tile < (p.tokens + 31) / 32; tile++) {
    for (int b = 0; b < (p.out + 63) / 64; b++) {
      run_block(b, tile, 128, [&] { kernel(p.x.data(), x_shape, p.w.data(), w_shape, p.scales.data(), p.biases.data(), p.y.data()); });
    }
  }
}

} // namespace

int main() {
  for (int tokens : {17, 32, 57, 128}) {
    for (int in : {512, 1536}) {
      for (int out : {80, 128}) { // a block and a quarter, two
        std::printf("%d %d %d %.6f\n", tokens, in, out, worst_of(tokens, in, out, run));
      }
    }
  }
}
