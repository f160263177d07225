// The sources of CUDA kernels for mixtures of experts, compiled by the framework
// when they are first used (mlx::fast::cuda_kernel). Its own products with chosen
// experts have a tile of 16 rows for every row, sorted or not, and routing takes
// it ten operations of a few numbers each, which cost the host more than the device.
//
// The first in columns of x [rows, at least in] times experts stacked in w [EXPERTS*out, in],
// of which ids [n] name n/rows for each row: y [n, out]. w is packed as MLX does: 4 bits a number, scales
// and biases for each group of 64. Numbers are bfloat16, sums float32. A number q
// becomes 128+q, as in few_rows.h.
//
// experts_few is for few products: a warp computes four outputs of one. Unless GATE is 0,
// one matrix is a gate of the other (row_kernels.h), and the block's second half of warps
// computes what the first half gates. For many,
// experts_sort puts them in the order of their experts, in tiles of up to 32 of one
// expert, and experts_many computes a tile by the tensor cores: a warp has 32
// outputs, whose words need not be turned around (few_rows.h), and x lies in shared
// memory, in pairs as the words hold them, with the sum of each group.
//
// experts_route chooses by scores [rows, EXPERTS], a warp for each row, which
// experts_scored finds or experts_score computes for a few rows, and experts_combine adds up what was chosen, [rows*K, width], by shares [rows, K].
//
// TestExpertKernelsOnTheProcessor and TestKernelsThatChooseExpertsOnTheProcessor run
// them without a GPU.

#ifndef METALFLEET_EXPERTS_H
#define METALFLEET_EXPERTS_H

static constexpr int experts_most = 1024; // counted in shared memory
static constexpr int experts_few_outputs = 16, experts_few_threads = 128;
static constexpr int experts_tile = 32, experts_many_outputs = 128, experts_many_threads = 128;
static constexpr int experts_sort_threads = 1024, experts_route_rows = 4, experts_score_rows = 16, experts_score_threads = 1024, experts_combine_threads = 128, experts_combine_columns = 8;

static const char *const experts_numbers = R"(
// Numbers i and i+4 of a word of 8, plus 128.
__device__ __forceinline__ unsigned experts_pair(unsigned word, int i) { return ((word >> (4 * i)) & 0x000f000fu) | 0x43004300u; }

// Both halves of a word of two numbers.
__device__ __forceinline__ float experts_low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float experts_high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// The sum of eight numbers.
__device__ __forceinline__ float experts_sum(const uint4 &v) {
  return ((experts_low(v.x) + experts_high(v.x)) + (experts_low(v.y) + experts_high(v.y))) + ((experts_low(v.z) + experts_high(v.z)) + (experts_low(v.w) + experts_high(v.w)));
}

// Eight numbers as pairs (i, i+4).
__device__ __forceinline__ uint4 experts_paired(const uint4 &v) {
  return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
}

// A number in float32, rounded to 16 bits.
__device__ __forceinline__ float experts_rounded(float v) { return __uint_as_float((unsigned)__bfloat16_as_ushort(__float2bfloat16(v)) << 16); }
)";

// One of two matrices and its result, where a product is with two of one shape.
static const char *const experts_one_of_two = R"(
  const auto *w = blockIdx.z == 0 ? w0 : w1;
  const auto *scales = blockIdx.z == 0 ? scales0 : scales1, *biases = blockIdx.z == 0 ? biases0 : biases1;
  auto *y = blockIdx.z == 0 ? y0 : y1;
  const auto &w_shape = w0_shape;
)";

// Of the half of a block.
static const char *const experts_one_of_gated = R"(
  const auto *w = threadIdx.x < 64 ? w0 : w1;
  const auto *scales = threadIdx.x < 64 ? scales0 : scales1, *biases = threadIdx.x < 64 ? biases0 : biases1;
  const auto &w_shape = w0_shape;
)";

static const char *const experts_few_source = R"(
  constexpr int ROWS = 4;
  const int lane = threadIdx.x % 32, in = w_shape[1] * 8, out = w_shape[0] / EXPERTS, pair = blockIdx.y;
  constexpr int WARPS = GATE ? 2 : 4;
  const int warp = threadIdx.x / 32 % WARPS, row0 = (blockIdx.x * WARPS + warp) * ROWS;
  if (row0 >= out) {
    return;
  }
  const size_t row = (size_t)ids[pair] * out + row0;
  const uint2 *words = reinterpret_cast<const uint2 *>(w + row * (in / 8)) + lane;
  const unsigned short *s = reinterpret_cast<const unsigned short *>(scales) + row * (in / 64) + lane / 4;
  const unsigned short *b = reinterpret_cast<const unsigned short *>(biases) + row * (in / 64) + lane / 4;
  const uint4 *v = reinterpret_cast<const uint4 *>(x + (size_t)(pair / (ids_shape[0] / x_shape[0])) * x_shape[1]) + lane * 2;
  uint2 next[ROWS];
  auto ask = [&](bool there) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      next[r] = there ? __ldcs(words + r * (in / 16)) : make_uint2(0, 0);
    }
    words += 32;
  };
  float total[ROWS] = {};
  ask(lane * 16 < in);
  for (int at = lane * 16; at < in; at += 512) {
    uint2 q[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      q[r] = next[r];
    }
    ask(at + 512 < in);
    const uint4 low = v[0], high = v[1], pairs[2] = {experts_paired(low), experts_paired(high)};
    const float sum = experts_sum(low) + experts_sum(high);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float scale = __uint_as_float((unsigned)s[r * (in / 64)] << 16), bias = __uint_as_float((unsigned)b[r * (in / 64)] << 16);
      float dot = 0;
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const unsigned word = j == 0 ? q[r].x : q[r].y;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const unsigned of = i == 0 ? pairs[j].x : i == 1 ? pairs[j].y : i == 2 ? pairs[j].z : pairs[j].w, by = experts_pair(word, i);
          dot += experts_low(by) * experts_low(of) + experts_high(by) * experts_high(of);
        }
      }
      total[r] += scale * dot + (bias - 128.0f * scale) * sum;
    }
    v += 64;
    s += 8;
    b += 8;
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], mask);
    }
  }
  const float own = lane == 0 ? total[0] : lane == 1 ? total[1] : lane == 2 ? total[2] : total[3];
  if (GATE) {
    __shared__ float sums[2][WARPS * ROWS];
    if (lane < ROWS) {
      sums[threadIdx.x / 64][warp * ROWS + lane] = gate_rounded(own);
    }
    __syncthreads();
    if (threadIdx.x < WARPS * ROWS) {
      y[(size_t)pair * out + blockIdx.x * WARPS * ROWS + threadIdx.x] = __float2bfloat16(gate_of(GATE, sums[0][threadIdx.x], sums[1][threadIdx.x]));
    }
  } else if (lane < ROWS) {
    y[(size_t)pair * out + row0 + lane] = __float2bfloat16(own);
  }
)";

// tiles are their number, then the expert, the first place in order and the count of
// each.
static const char *const experts_sort_source = R"(
  __shared__ int counts[EXPERTS], places[EXPERTS];
  const int n = ids_shape[0];
  for (int e = threadIdx.x; e < EXPERTS; e += blockDim.x) {
    counts[e] = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    atomicAdd(counts + ids[i], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < EXPERTS; e += blockDim.x) {
    int first = 0, tile = 0;
    for (int before = 0; before < e; before++) {
      first += counts[before];
      tile += (counts[before] + TILE - 1) / TILE;
    }
    places[e] = first;
    for (int at = 0; at < counts[e]; at += TILE, tile++) {
      tiles[1 + 3 * tile] = e;
      tiles[2 + 3 * tile] = first + at;
      tiles[3 + 3 * tile] = counts[e] - at < TILE ? counts[e] - at : TILE;
    }
    if (e == EXPERTS - 1) {
      tiles[0] = tile;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    order[atomicAdd(places + ids[i], 1)] = i;
  }
)";

static const char *const experts_many_source = R"(
  // Of x, two groups are computed at a time, and the next two are on their way. A
  // token of a group takes SPACED vectors of eight numbers, so that tokens keep off
  // each other's banks.
  constexpr int TOKENS = 32, OUTPUTS = 128, SPACED = 12;
  __shared__ uint4 room[2 * 2 * TOKENS * SPACED];
  __shared__ float sums[2][2][TOKENS];
  __shared__ int pairs[TOKENS];
  if (blockIdx.y >= tiles[0]) {
    return;
  }
  const int expert = tiles[1 + 3 * blockIdx.y], first = tiles[2 + 3 * blockIdx.y], tokens = tiles[3 + 3 * blockIdx.y];
  const int in = w_shape[1] * 8, out = w_shape[0] / EXPERTS, groups = in / 64;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4, own = thread / 4;
  const bool there = own < tokens, has = blockIdx.x * OUTPUTS + warp * 32 < out;
  const int pair = order[first + (there ? own : 0)];
  if (t == 0) {
    pairs[own] = pair;
  }
  const uint4 *from = reinterpret_cast<const uint4 *>(x + (size_t)(pair / (order_shape[0] / x_shape[0])) * x_shape[1]) + t * 2;
  uint4 v[2][2];
  auto ask = [&](int group) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const bool some = there && group + k < groups;
      v[k][0] = some ? from[(group + k) * 8] : make_uint4(0, 0, 0, 0);
      v[k][1] = some ? from[(group + k) * 8 + 1] : make_uint4(0, 0, 0, 0);
    }
  };
  auto put = [&](int turn) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      uint4 *to = room + ((turn * 2 + k) * TOKENS + own) * SPACED + t;
      to[0] = experts_paired(v[k][0]);
      to[4] = experts_paired(v[k][1]);
      float sum = experts_sum(v[k][0]) + experts_sum(v[k][1]);
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0) {
        sums[turn][k][own] = sum;
      }
    }
  };
  const size_t row = (size_t)expert * out + (has ? blockIdx.x * OUTPUTS + warp * 32 : 0) + g;
  const uint2 *words = reinterpret_cast<const uint2 *>(w + row * (in / 8)) + t;
  const unsigned short *s = reinterpret_cast<const unsigned short *>(scales) + row * groups;
  const unsigned short *b = reinterpret_cast<const unsigned short *>(biases) + row * groups;
  uint2 next[2][4];
  unsigned scale[2][4], bias[2][4];
  auto fetch = [&](int group) { // of the last group again where there is none: its x is zero
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int at = group + k < groups ? group + k : groups - 1;
#pragma unroll
      for (int r = 0; r < 4; r++) {
        next[k][r] = __ldcs(words + (size_t)r * 8 * (in / 16) + at * 4);
        scale[k][r] = s[r * 8 * groups + at];
        bias[k][r] = b[r * 8 * groups + at];
      }
    }
  };
  float total[2][TOKENS / 8][4] = {};
  ask(0);
  fetch(0);
  put(0);
  for (int group = 0; group < groups; group += 2) {
    const int turn = group / 2 % 2;
    uint2 q[2][4];
    float by[2][4], plus[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      q[i / 4][i % 4] = next[i / 4][i % 4];
      by[i / 4][i % 4] = __uint_as_float(scale[i / 4][i % 4] << 16);
      plus[i / 4][i % 4] = __uint_as_float(bias[i / 4][i % 4] << 16) - 128.0f * by[i / 4][i % 4];
    }
    __syncthreads();
    if (group + 2 < groups) {
      ask(group + 2);
      fetch(group + 2);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      float dot[2][TOKENS / 8][4] = {};
#pragma unroll
      for (int j = 0; j < 2; j++) {
        unsigned a[2][2][4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            a[r / 2][r % 2][i] = experts_pair(j == 0 ? q[k][r].x : q[k][r].y, i);
          }
        }
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
          const uint4 u = room[((turn * 2 + k) * TOKENS + n * 8 + g) * SPACED + j * 4 + t];
#pragma unroll
          for (int m = 0; m < 2; m++) {
            few_rows_mma(dot[m][n], a[m][0][0], a[m][1][0], a[m][0][1], a[m][1][1], u.x, u.y);
          }
#pragma unroll
          for (int m = 0; m < 2; m++) {
            few_rows_mma(dot[m][n], a[m][0][2], a[m][1][2], a[m][0][3], a[m][1][3], u.z, u.w);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < TOKENS / 8; n++) {
        const float low = sums[turn][k][n * 8 + 2 * t], high = sums[turn][k][n * 8 + 2 * t + 1];
#pragma unroll
        for (int m = 0; m < 2; m++) {
          total[m][n][0] += by[k][2 * m] * dot[m][n][0] + plus[k][2 * m] * low;
          total[m][n][1] += by[k][2 * m] * dot[m][n][1] + plus[k][2 * m] * high;
          total[m][n][2] += by[k][2 * m + 1] * dot[m][n][2] + plus[k][2 * m + 1] * low;
          total[m][n][3] += by[k][2 * m + 1] * dot[m][n][3] + plus[k][2 * m + 1] * high;
        }
      }
    }
    if (group + 2 < groups) {
      put(1 - turn);
    }
  }
  __syncthreads();
  auto *done = reinterpret_cast<decltype(y)>(room); // [token][OUTPUTS and 8 more]
#pragma unroll
  for (int i = 0; i < 2 * TOKENS / 8 * 4; i++) {
    const int m = i / (TOKENS / 2), n = i / 4 % (TOKENS / 8), of = i % 4;
    done[(n * 8 + 2 * t + of % 2) * (OUTPUTS + 8) + warp * 32 + m * 16 + g + of / 2 * 8] = __float2bfloat16(total[m][n][of]);
  }
  __syncthreads();
  for (int i = thread; i < TOKENS * OUTPUTS / 8; i += blockDim.x) {
    const int token = i / (OUTPUTS / 8), column = blockIdx.x * OUTPUTS + i % (OUTPUTS / 8) * 8;
    if (token < tokens && column < out) {
      *reinterpret_cast<uint4 *>(y + (size_t)pairs[token] * out + column) = room[token * (OUTPUTS + 8) / 8 + i % (OUTPUTS / 8)];
    }
  }
)";

// Scores as they were computed, for a warp each.
static const char *const experts_scored_source = R"(
  const int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= scores_shape[0]) {
    return;
  }
  auto score = [&](int e) { return (float)scores[(size_t)row * EXPERTS + e]; };
)";

// Scores of x [rows, in] by a router [EXPERTS, in], rounded to 16 bits, by a block for each
// row, of which one warp continues.
static const char *const experts_score_source = R"(
  __shared__ float own[EXPERTS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x, in = x_shape[1];
  const uint4 *of = reinterpret_cast<const uint4 *>(x + (size_t)row * in);
  for (int e = warp; e < EXPERTS; e += blockDim.x / 32) {
    const uint4 *by = reinterpret_cast<const uint4 *>(router + (size_t)e * in);
    float dot = 0;
    for (int i = lane; i < in / 8; i += 32) {
      const uint4 a = of[i], b = by[i];
      dot += experts_low(a.x) * experts_low(b.x) + experts_high(a.x) * experts_high(b.x) + experts_low(a.y) * experts_low(b.y) + experts_high(a.y) * experts_high(b.y);
      dot += experts_low(a.z) * experts_low(b.z) + experts_high(a.z) * experts_high(b.z) + experts_low(a.w) * experts_low(b.w) + experts_high(a.w) * experts_high(b.w);
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      dot += __shfl_xor_sync(0xffffffffu, dot, mask);
    }
    if (lane == 0) {
      own[e] = experts_rounded(dot);
    }
  }
  __syncthreads();
  if (warp > 0) {
    return;
  }
  auto score = [&](int e) { return own[e]; };
)";

// With ROUNDED, weights and shares are rounded to 16 bits where the operations of
// the framework round them. LEAST and SCALE are the bits of numbers of float32.
static const char *const experts_route_source = R"(
  constexpr int PER = (EXPERTS + 31) / 32;
  const float none = __uint_as_float(0xff800000u);
  float weight[PER], wanted[PER], top = none, all = 0;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const int e = lane + 32 * i;
    weight[i] = e < EXPERTS ? score(e) : none;
    top = fmaxf(top, weight[i]);
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
  }
#pragma unroll
  for (int i = 0; i < PER; i++) {
    weight[i] = SIGMOID ? 1.0f / (1.0f + expf(-weight[i])) : expf(weight[i] - top);
    all += weight[i];
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    all += __shfl_xor_sync(0xffffffffu, all, mask);
  }
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const int e = lane + 32 * i;
    weight[i] = SIGMOID ? weight[i] : weight[i] / all;
    weight[i] = ROUNDED ? experts_rounded(weight[i]) : weight[i];
    wanted[i] = e < EXPERTS ? (BIASED ? weight[i] + (float)bias[e] : weight[i]) : none;
  }
  float sum = 0, share = 0;
  int chosen = 0;
  for (int k = 0; k < K; k++) {
    float best = none, of = 0, at = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
      if (wanted[i] > best) {
        best = wanted[i], of = weight[i], at = lane + 32 * i;
      }
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, mask), of_other = __shfl_xor_sync(0xffffffffu, of, mask), at_other = __shfl_xor_sync(0xffffffffu, at, mask);
      if (other > best || other == best && at_other < at) {
        best = other, of = of_other, at = at_other;
      }
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
      wanted[i] = lane + 32 * i == (int)at ? none : wanted[i];
    }
    sum += of;
    if (lane == k) {
      share = of, chosen = (int)at;
    }
  }
  if (lane >= K) {
    return;
  }
  if (NORMALIZED) {
    sum += __uint_as_float(LEAST);
    share /= ROUNDED ? experts_rounded(sum) : sum;
  }
  if (EACH) {
    share *= (float)each[chosen];
  }
  ids[(size_t)row * K + lane] = chosen;
  shares[(size_t)row * K + lane] = share * __uint_as_float(SCALE);
)";

static const char *const experts_combine_source = R"(
  const int width = y_shape[1], i = blockIdx.x * blockDim.x + threadIdx.x, row = i / (width / 8), column = i % (width / 8) * 8;
  if (row >= shares_shape[0]) {
    return;
  }
  float sum[8] = {};
  for (int k = 0; k < K; k++) {
    const uint4 v = *reinterpret_cast<const uint4 *>(y + ((size_t)row * K + k) * width + column);
    const float share = (float)shares[row * K + k];
    const float of[8] = {experts_low(v.x), experts_high(v.x), experts_low(v.y), experts_high(v.y), experts_low(v.z), experts_high(v.z), experts_low(v.w), experts_high(v.w)};
#pragma unroll
    for (int j = 0; j < 8; j++) {
      sum[j] += ROUNDED ? experts_rounded(of[j] * share) : of[j] * share;
    }
  }
#pragma unroll
  for (int j = 0; j < 8; j++) {
    out[(size_t)row * width + column + j] = __float2bfloat16(sum[j]);
  }
)";

#endif
