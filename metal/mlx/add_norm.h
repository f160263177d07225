// The sources of two CUDA kernels, compiled by the framework when they are first used
// (mlx::fast::cuda_kernel).
//
// add_norm is a sum and its norm, which each half of a layer begins with. The framework
// launches a kernel for each of them and reads the sum twice; a launch costs the host more
// than such a kernel takes.
//
// a + b, times by[0] if it is SCALED: sum [rows, WIDTH]; its norm, times weight: y. A
// summand is an array a0; or, of kind NORMED, the norm of a0 times a1 [WIDTH]; or, of kind
// ADDED, a0 + a1; or, of kind COMBINED, what K experts of each row made, a0 [rows*K, WIDTH],
// added up by shares [rows, K] (experts.h), or that and a1. Numbers are bfloat16, rounded
// after each operation as the framework does; sums of squares are float32. EPS, A_EPS and B_EPS are the bits of numbers of float32.
//
// norm_cut is the norm of the first WIDTH columns of x [rows, columns], times weight: y [rows,
// WIDTH]. The framework would copy those columns first.
//
// A block has one row, a thread every THREADS-th run of 8 columns.
//
// TestAddNormKernelOnTheProcessor runs both without a GPU.

#ifndef METALFLEET_ADD_NORM_H
#define METALFLEET_ADD_NORM_H

static constexpr int add_norm_plain = 0, add_norm_normed = 1, add_norm_added = 2, add_norm_combined_added = 3, add_norm_combined = 4;
static constexpr int add_norm_widest = 16384, add_norm_most_threads = 512;

static const char *const add_norm_numbers = R"(
// 8 numbers as they lie in memory, and one of them.
__device__ __forceinline__ float add_norm_at(const uint4 &v, int i) {
  const unsigned pair = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
  return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}
__device__ __forceinline__ uint4 add_norm_row(const void *from, int i) { return reinterpret_cast<const uint4 *>(from)[i]; }

__device__ __forceinline__ float add_norm_rounded(float v) { return __uint_as_float((unsigned)__bfloat16_as_ushort(__float2bfloat16(v)) << 16); }

// Writes 8 numbers, which are rounded already.
__device__ __forceinline__ void add_norm_write(void *to, int i, const float (&v)[8]) {
  auto pair = [&](int at) { return __float_as_uint(v[at]) >> 16 | (__float_as_uint(v[at + 1]) & 0xffff0000u); };
  reinterpret_cast<uint4 *>(to)[i] = make_uint4(pair(0), pair(2), pair(4), pair(6));
}

// The reciprocal of the root mean square of a block's row, from a thread's squares.
__device__ __forceinline__ float add_norm_scale(float *room, float squares, int width, float eps) {
  for (int mask = 16; mask > 0; mask /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, mask);
  }
  __syncthreads(); // room may still be read
  if (threadIdx.x % 32 == 0) {
    room[threadIdx.x / 32] = squares;
  }
  __syncthreads();
  float all = 0;
  for (int warp = 0; warp < blockDim.x / 32; warp++) {
    all += room[warp];
  }
  return rsqrtf(all / width + eps);
}
)";

static const char *const add_norm_source = R"(
  constexpr int PER = (WIDTH / 8 + THREADS - 1) / THREADS;
  __shared__ float room[32];
  const size_t at = (size_t)blockIdx.x * WIDTH;
  float total[PER][8] = {};

  auto add = [&](int kind, const auto *first, const auto *second, int eps) {
    float scale = 1;
    if (kind == 1) {
      float squares = 0;
#pragma unroll
      for (int p = 0; p < PER; p++) {
        const int i = threadIdx.x + p * THREADS;
        if (i < WIDTH / 8) {
          const uint4 v = add_norm_row(first + at, i);
#pragma unroll
          for (int j = 0; j < 8; j++) {
            squares += add_norm_at(v, j) * add_norm_at(v, j);
          }
        }
      }
      scale = add_norm_scale(room, squares, WIDTH, __uint_as_float(eps));
    }
    if (kind >= 3) {
#pragma unroll
      for (int p = 0; p < PER; p++) {
        const int i = threadIdx.x + p * THREADS;
        if (i < WIDTH / 8) {
          float of[8] = {};
          for (int k = 0; k < K; k++) {
            const uint4 v = add_norm_row(first + at * K + (size_t)k * WIDTH, i);
            const float share = (float)shares[blockIdx.x * K + k];
#pragma unroll
            for (int j = 0; j < 8; j++) {
              of[j] += ROUNDED ? add_norm_rounded(add_norm_at(v, j) * share) : add_norm_at(v, j) * share;
            }
          }
          const uint4 w = kind == 3 ? add_norm_row(second + at, i) : make_uint4(0, 0, 0, 0);
#pragma unroll
          for (int j = 0; j < 8; j++) {
            of[j] = add_norm_rounded(of[j]);
            total[p][j] += kind == 3 ? add_norm_rounded(of[j] + add_norm_at(w, j)) : of[j];
          }
        }
      }
      return;
    }
#pragma unroll
    for (int p = 0; p < PER; p++) {
      const int i = threadIdx.x + p * THREADS;
      if (i < WIDTH / 8) {
        const uint4 v = add_norm_row(first + at, i), w = kind == 0 ? v : add_norm_row(kind == 1 ? second : second + at, i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
          float of = add_norm_at(v, j);
          of = kind == 1 ? add_norm_rounded(add_norm_at(w, j) * add_norm_rounded(of * scale)) : kind == 2 ? add_norm_rounded(of + add_norm_at(w, j)) : of;
          total[p][j] += of;
        }
      }
    }
  };
  add(A, a0, a1, A_EPS);
  add(B, b0, b1, B_EPS);

  float squares = 0;
#pragma unroll
  for (int p = 0; p < PER; p++) {
    const int i = threadIdx.x + p * THREADS;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      total[p][j] = add_norm_rounded(total[p][j]);
      if (SCALED) {
        total[p][j] = add_norm_rounded(total[p][j] * (float)by[0]);
      }
      squares += total[p][j] * total[p][j];
    }
    if (i < WIDTH / 8) {
      add_norm_write(sum + at, i, total[p]);
    }
  }
  const float scale = add_norm_scale(room, squares, WIDTH, __uint_as_float(EPS));
#pragma unroll
  for (int p = 0; p < PER; p++) {
    const int i = threadIdx.x + p * THREADS;
    if (i < WIDTH / 8) {
      const uint4 w = add_norm_row(weight, i);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        total[p][j] = add_norm_rounded(add_norm_at(w, j) * add_norm_rounded(total[p][j] * scale));
      }
      add_norm_write(y + at, i, total[p]);
    }
  }
)";

static const char *const norm_cut_source = R"(
  constexpr int PER = (WIDTH / 8 + THREADS - 1) / THREADS;
  __shared__ float room[32];
  const auto *from = x + (size_t)blockIdx.x * x_shape[1];
  auto *to = y + (size_t)blockIdx.x * WIDTH;
  uint4 own[PER];
  float squares = 0;
#pragma unroll
  for (int p = 0; p < PER; p++) {
    const int i = threadIdx.x + p * THREADS;
    own[p] = i < WIDTH / 8 ? add_norm_row(from, i) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      squares += add_norm_at(own[p], j) * add_norm_at(own[p], j);
    }
  }
  const float scale = add_norm_scale(room, squares, WIDTH, __uint_as_float(EPS));
#pragma unroll
  for (int p = 0; p < PER; p++) {
    const int i = threadIdx.x + p * THREADS;
    if (i < WIDTH / 8) {
      const uint4 w = add_norm_row(weight, i);
      float normed[8];
#pragma unroll
      for (int j = 0; j < 8; j++) {
        normed[j] = add_norm_rounded(add_norm_at(w, j) * add_norm_rounded(add_norm_at(own[p], j) * scale));
      }
      add_norm_write(to, i, normed);
    }
  }
)";

#endif
