// Runs the text of a CUDA kernel on a processor. Every lane of a block has a
// stack of its own, and they take turns: the lanes of a warp go on together from
// one operation of the warp to the next, and the warps of a block from one
// __syncthreads to the next. Lanes of a warp that do not get to the same one end
// the program.
//
// What mma.m16n8k16 does to the registers of 32 lanes is as the PTX ISA has it.

#ifndef METALFLEET_TESTDATA_CUDA_H
#define METALFLEET_TESTDATA_CUDA_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ucontext.h>

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct dim { int x, y; };
using bfloat16 = uint16_t;

inline dim threadIdx, blockIdx, blockDim;

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline float __uint_as_float(unsigned u) {
  float out;
  std::memcpy(&out, &u, sizeof out);
  return out;
}

inline float wide(bfloat16 v) { return __uint_as_float(static_cast<unsigned>(v) << 16); }

inline bfloat16 __float2bfloat16(float v) {
  unsigned u;
  std::memcpy(&u, &v, sizeof u);
  return static_cast<bfloat16>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  uint64_t all = static_cast<uint64_t>(high) << 32 | low;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) {
    out |= static_cast<unsigned>(all >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  }
  return out;
}

template <class T> T __ldcs(const T *from) { return *from; }

// Where a lane is, and what the lanes of a warp show each other: in turns of
// two, so that who goes on first does not overwrite what others still read.
enum class place { start, warp, block, end };
struct lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  place at = place::start;
  int operations = 0;
};
struct warp_registers { unsigned a[2][32][4], b[2][32][2]; };

inline ucontext_t scheduler;
inline std::vector<lane> lanes;
inline std::vector<warp_registers> registers;
inline const std::function<void()> *body;

// A lane waits for the others.
inline void wait(place at) {
  auto &self = lanes[static_cast<size_t>(threadIdx.x)];
  self.at = at;
  swapcontext(&self.context, &scheduler);
}

inline void __syncthreads() { wait(place::block); }

// The registers of this warp in the turn of this lane's next operation.
inline warp_registers &of_warp(int &turn) {
  turn = lanes[static_cast<size_t>(threadIdx.x)].operations++ % 2;
  return registers[static_cast<size_t>(threadIdx.x / 32)];
}

inline float __shfl_xor_sync(unsigned, float v, int mask) {
  int turn;
  auto &all = of_warp(turn);
  std::memcpy(&all.a[turn][threadIdx.x % 32][0], &v, sizeof v);
  wait(place::warp);
  return __uint_as_float(all.a[turn][threadIdx.x % 32 ^ mask][0]);
}

inline float half_of(unsigned pair, int i) { return wide(static_cast<bfloat16>(i % 2 == 0 ? pair & 0xffff : pair >> 16)); }

inline void few_rows_mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  int turn;
  auto &all = of_warp(turn);
  const int lane = threadIdx.x % 32, group = lane / 4, in_group = lane % 4;
  const unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  std::copy(a, a + 4, all.a[turn][lane]);
  std::copy(b, b + 2, all.b[turn][lane]);
  wait(place::warp);
  for (int i = 0; i < 4; i++) {
    const int row = group + (i / 2) * 8, column = 2 * in_group + i % 2;
    for (int k = 0; k < 16; k++) {
      const int holder = k % 8 / 2, upper = k / 8;
      c[i] += half_of(all.a[turn][row % 8 * 4 + holder][2 * upper + row / 8], k) * half_of(all.b[turn][column * 4 + holder][upper], k);
    }
  }
}

inline unsigned some_rows_fma(unsigned a, unsigned b, unsigned c) {
  auto one = [&](int i) { return static_cast<unsigned>(__float2bfloat16(std::fma(half_of(a, i), half_of(b, i), half_of(c, i)))); };
  return one(0) | one(1) << 16;
}

// Bytes on their way come when they are waited for, and not before.
struct asked { uint4 *to; uint4 bytes; };
struct asking { std::vector<std::vector<asked>> begun; std::vector<asked> now; };
inline std::vector<asking> askings;

inline void some_rows_ask(uint4 *to, const void *from, bool there) {
  uint4 bytes = {0, 0, 0, 0};
  if (there) {
    std::memcpy(&bytes, from, sizeof bytes);
  }
  askings[static_cast<size_t>(threadIdx.x)].now.push_back({to, bytes});
}

inline void some_rows_begin() {
  auto &own = askings[static_cast<size_t>(threadIdx.x)];
  own.begun.push_back(std::exchange(own.now, {}));
}

template <int N> void some_rows_wait() {
  auto &begun = askings[static_cast<size_t>(threadIdx.x)].begun;
  while (begun.size() > N) {
    for (const auto &a : begun.front()) {
      *a.to = a.bytes;
    }
    begun.erase(begun.begin());
  }
}

inline void enter_lane() {
  (*body)();
  wait(place::end);
}

// Runs one lane until it waits.
inline void resume(int i) {
  auto &l = lanes[static_cast<size_t>(i)];
  threadIdx = {i, 0};
  if (l.at == place::start) {
    getcontext(&l.context);
    l.context.uc_stack.ss_sp = l.stack.data();
    l.context.uc_stack.ss_size = l.stack.size();
    l.context.uc_link = nullptr;
    makecontext(&l.context, enter_lane, 0);
  }
  swapcontext(&scheduler, &l.context);
}

// Runs a warp until all its lanes wait for the block, or have ended.
inline place run_warp(int warp) {
  for (;;) {
    for (int i = 0; i < 32; i++) {
      resume(warp * 32 + i);
    }
    const auto &first = lanes[static_cast<size_t>(warp * 32)];
    for (int i = 1; i < 32; i++) {
      const auto &l = lanes[static_cast<size_t>(warp * 32 + i)];
      if (l.at != first.at || l.operations != first.operations) {
        std::printf("lanes 0 and %d of a warp are apart\n", i);
        std::exit(1);
      }
    }
    if (first.at != place::warp) {
      return first.at;
    }
  }
}

// Runs one block of the kernel that call calls.
inline void run_block(int x, int y, int threads, const std::function<void()> &call) {
  blockIdx = {x, y};
  blockDim = {threads, 1};
  body = &call;
  lanes.resize(static_cast<size_t>(threads));
  registers.resize(static_cast<size_t>(threads / 32));
  askings.assign(static_cast<size_t>(threads), {});
  for (auto &l : lanes) {
    l.at = place::start;
  }
  for (auto at = place::block; at != place::end;) {
    at = run_warp(0);
    for (int warp = 1; warp < threads / 32; warp++) {
      if (run_warp(warp) != at) {
        std::printf("warps 0 and %d of a block are apart\n", warp);
        std::exit(1);
      }
    }
  }
}

// The larger error; not a number is the largest.
inline double worse(double worst, double error) { return error <= worst ? worst : std::isnan(error) ? 1e9 : error; }

#define __device__
#define __forceinline__ inline
#define __shared__ static

#endif
