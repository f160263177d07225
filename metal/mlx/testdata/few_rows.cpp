// Runs the CUDA kernel of few_rows.h on a processor and compares it with plain
// float64: a thread for each lane, a barrier for each product of a warp. What
// the product does to the registers of 32 lanes is as the PTX ISA has it for
// mma.m16n8k16. numbers.inc and kernel.inc are the kernel's text.
//
// Prints the largest error, as a part of the root of the sum of squares that a
// result is made of, for each case.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace {

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct dim { int x; };
using bfloat16 = uint16_t;

thread_local dim threadIdx, blockIdx, blockDim;

uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

float __uint_as_float(unsigned u) {
  float out;
  std::memcpy(&out, &u, sizeof out);
  return out;
}

float wide(bfloat16 v) { return __uint_as_float(static_cast<unsigned>(v) << 16); }

bfloat16 __float2bfloat16(float v) {
  unsigned u;
  std::memcpy(&u, &v, sizeof u);
  return static_cast<bfloat16>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  uint64_t all = static_cast<uint64_t>(high) << 32 | low;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) {
    out |= static_cast<unsigned>(all >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  }
  return out;
}

template <class T> T __ldcs(const T *from) { return *from; }

struct warp_registers {
  std::barrier<> together{32};
  unsigned a[32][4], b[32][2];
};

thread_local warp_registers *registers;
std::barrier<> *block;

void __syncthreads() { block->arrive_and_wait(); }

float half_of(unsigned pair, int i) { return wide(static_cast<bfloat16>(i % 2 == 0 ? pair & 0xffff : pair >> 16)); }

void few_rows_mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const int lane = threadIdx.x % 32, group = lane / 4, in_group = lane % 4;
  const unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  std::copy(a, a + 4, registers->a[lane]);
  std::copy(b, b + 2, registers->b[lane]);
  registers->together.arrive_and_wait();
  for (int i = 0; i < 4; i++) {
    const int row = group + (i / 2) * 8, column = 2 * in_group + i % 2;
    for (int k = 0; k < 16; k++) {
      const int holder = k % 8 / 2, upper = k / 8;
      c[i] += half_of(registers->a[row % 8 * 4 + holder][2 * upper + row / 8], k) * half_of(registers->b[column * 4 + holder][upper], k);
    }
  }
  registers->together.arrive_and_wait();
}

#define __device__
#define __forceinline__ inline
#define __shared__ static
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
    std::barrier<> all(warps * 32);
    block = &all;
    std::vector<std::unique_ptr<warp_registers>> of_warps;
    std::vector<std::thread> lanes;
    for (int i = 0; i < warps; i++) {
      of_warps.push_back(std::make_unique<warp_registers>());
    }
    for (int i = 0; i < warps * 32; i++) {
      lanes.emplace_back([&, i] {
        threadIdx.x = i, blockIdx.x = b, blockDim.x = warps * 32;
        registers = of_warps[static_cast<size_t>(i / 32)].get();
        (tokens > 8 ? kernel<2> : kernel<1>)(x.data(), x_shape, w.data(), w_shape, scales.data(), biases.data(), y.data());
      });
    }
    for (auto &lane : lanes) {
      lane.join();
    }
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
      worst = error <= worst ? worst : error; // not a number is worse
    }
  }
  const bool beyond = std::any_of(y.end() - 16, y.end(), [](bfloat16 v) { return v != untouched; });
  return beyond ? 1 : worst;
}

} // namespace

int main() {
  for (int tokens : {1, 3, 8, 9, 16}) {
    for (int in : {512, 1536, 4608}) {
      std::printf("%d %d %.6f\n", tokens, in, worst_of(tokens, in, 32));
    }
  }
}
