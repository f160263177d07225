// The source of a CUDA kernel, compiled by the framework when it is first used
// (mlx::fast::cuda_kernel), and the list of its parameters.
//
// Attention of the segments of a step, which may have any length and any context
// length: q [rows, heads, SIZE] of the step attends to keys and values in place, in
// up to four slabs [slots, kv_heads, capacity, SIZE]; y [rows, heads, SIZE]. All
// numbers are bfloat16, scores and sums float32. The framework has no such
// kernel: it attends answers of different lengths one by one or by operations
// of their own under a mask, and pieces of prompts after planning each length;
// each takes the host longer than the device (H100, 36 layers: 8 ms for a piece
// of 28 tokens, next to a decode that takes 6.5).
//
// A token's queries of the heads that share keys are pairs (token, head), and a
// tile is 16 consecutive pairs of a segment. A block has a tile and a
// head of keys. Its warps take 16 keys each in turn, with a softmax of their own
// each, which are merged at the end. Products are the tensor cores'
// (mma.m16n8k16); what comes next is asked for before what is there is
// computed.
//
// Nothing is turned around on its way to them. Columns of an mma may be in any
// order that both operands share: lane t of the four that have a key holds, of
// every 32 numbers of it, 8t to 8t+7. And the columns of a result may be any:
// lane g holds numbers 8g to 8g+7 of every 64 of a value, and the e-th product
// is of the e-th of them.
//
// TestRaggedKernelOnTheProcessor runs it without a GPU; the self-test of the
// engine (bfloat16: attention of prefill chunks with decodes) does on one.

#ifndef METALFLEET_RAGGED_H
#define METALFLEET_RAGGED_H

#include <cstdint>
#include <cstring>
#include <vector>

// Slabs of one launch, pairs of a tile, and the threads of a block.
static constexpr int ragged_slabs = 4, ragged_pairs = 16, ragged_threads = 256;

// A segment: its tokens stand from row on in q and from out on in y, and it sees
// its slot up to itself. slab counts those of the launch.
struct ragged_segment {
  int32_t slab, slot, capacity, start, length, row, out;
};

// The kernel's parameters: heads, heads of keys, the scale of scores for powers
// of two, and the tiles of all segments.
inline std::vector<int32_t> ragged_list(int32_t heads, int32_t kv_heads, float scale, const std::vector<ragged_segment> &segments) {
  scale *= 1.44269504f; // log2 e
  std::vector<int32_t> out{heads, kv_heads, 0, 0};
  std::memcpy(&out[2], &scale, sizeof scale);
  for (const auto &s : segments) {
    for (int32_t first = 0; first < s.length * (heads / kv_heads); first += ragged_pairs) {
      out.insert(out.end(), {s.slab, s.slot, s.capacity, s.start, s.length, s.row, s.out, first});
    }
  }
  return out;
}

inline int ragged_tiles(const std::vector<int32_t> &list) { return static_cast<int>(list.size() - 4) / 8; }

// Two numbers, rounded.
static const char *const ragged_rounding = R"(
__device__ __forceinline__ unsigned ragged_round(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
)";

static const char *const ragged_numbers = R"(
// Eight numbers; zeros where there are none.
template <class T> __device__ __forceinline__ uint4 ragged_at(const T *from, bool there) {
  return there ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ unsigned ragged_word(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The larger of the four lanes that share a row, and their sum.
__device__ __forceinline__ float ragged_highest(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float ragged_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
)";

static const char *const ragged_source = R"(
  __shared__ float partial[8][16][68], tops[8][16], sums[8][16];
  constexpr int VECTORS = SIZE / 32, HALVES = SIZE / 64;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int heads = tiles[0], group = heads / tiles[1];
  const float scale = __uint_as_float(tiles[2]), none = __uint_as_float(0xff800000u);
  const int *tile = tiles + 4 + 8 * blockIdx.x;
  const int slab = tile[0], start = tile[3], pairs = tile[4] * group, row = tile[5], out = tile[6], first = tile[7];
  const int last = first + 15 < pairs ? first + 15 : pairs - 1, end = start + last / group + 1;
  const size_t slot = ((size_t)tile[1] * tiles[1] + blockIdx.y) * tile[2] * SIZE;
  const auto *k = (slab == 0 ? k0 : slab == 1 ? k1 : slab == 2 ? k2 : k3) + slot;
  const auto *v = (slab == 0 ? v0 : slab == 1 ? v1 : slab == 2 ? v2 : v3) + slot;

  // Of rows g and g+8 of the tile: queries, the last key that they see, their
  // highest score so far and the sum of their powers.
  uint4 query[2][VECTORS];
  int seen[2];
  float top[2] = {none, none}, sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int pair = first + g + 8 * i;
    seen[i] = start + pair / group;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
      query[i][j] = ragged_at(q + ((size_t)(row + pair / group) * heads + blockIdx.y * group + pair % group) * SIZE + j * 32 + t * 8, pair < pairs);
    }
  }

  float total[HALVES][8][4] = {};
  uint4 key[2][VECTORS], value[HALVES][4];
  auto ask_keys = [&](int at) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int of = at + 8 * n + g;
#pragma unroll
      for (int j = 0; j < VECTORS; j++) {
        key[n][j] = ragged_at(k + (size_t)of * SIZE + j * 32 + t * 8, of < end);
      }
    }
  };
  auto ask_values = [&](int at) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int of = at + 8 * (i / 2) + 2 * t + i % 2;
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        value[h][i] = ragged_at(v + (size_t)of * SIZE + h * 64 + g * 8, of < end);
      }
    }
  };
  ask_keys(warp * 16);
  ask_values(warp * 16);
  for (int at = warp * 16; at < end; at += warps * 16) {
    float score[2][4] = {};
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
        few_rows_mma(score[n], query[0][j].x, query[1][j].x, query[0][j].y, query[1][j].y, key[n][j].x, key[n][j].y);
        few_rows_mma(score[n], query[0][j].z, query[1][j].z, query[0][j].w, query[1][j].w, key[n][j].z, key[n][j].w);
      }
    }
    ask_keys(at + warps * 16);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float high = none;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        float &s = score[n / 2][2 * i + n % 2];
        s = at + 8 * (n / 2) + 2 * t + n % 2 <= seen[i] ? s * scale : none;
        high = fmaxf(high, s);
      }
      high = fmaxf(top[i], ragged_highest(high));
      const float base = high == none ? 0 : high, shrunk = exp2f(top[i] - base);
      top[i] = high;
      sum[i] *= shrunk;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        float &s = score[n / 2][2 * i + n % 2];
        s = exp2f(s - base);
        sum[i] += s;
      }
#pragma unroll
      for (int n = 0; n < HALVES * 8; n++) {
        total[n / 8][n % 8][2 * i] *= shrunk;
        total[n / 8][n % 8][2 * i + 1] *= shrunk;
      }
    }
    const unsigned a0 = ragged_round(score[0][0], score[0][1]), a1 = ragged_round(score[0][2], score[0][3]);
    const unsigned a2 = ragged_round(score[1][0], score[1][1]), a3 = ragged_round(score[1][2], score[1][3]);
#pragma unroll
    for (int n = 0; n < HALVES * 8; n++) {
      const uint4 *of = value[n / 8];
      const int word = n % 8 / 2;
      const unsigned half = n % 2 == 0 ? 0x5410 : 0x7632;
      few_rows_mma(total[n / 8][n % 8], a0, a1, a2, a3, __byte_perm(ragged_word(of[0], word), ragged_word(of[1], word), half),
                   __byte_perm(ragged_word(of[2], word), ragged_word(of[3], word), half));
    }
    ask_values(at + warps * 16);
  }

  // Every warp had some of the keys: each row's part of it by its highest score.
  const int busy = (end + 15) / 16 < warps ? (end + 15) / 16 : warps;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    sum[i] = ragged_sum(sum[i]);
    if (t == 0) {
      tops[warp][g + 8 * i] = top[i];
      sums[warp][g + 8 * i] = sum[i];
    }
  }
  __syncthreads();
  float part[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float high = none, all = 0;
    for (int from = 0; from < busy; from++) {
      high = fmaxf(high, tops[from][g + 8 * i]);
    }
    for (int from = 0; from < busy; from++) {
      all += sums[from][g + 8 * i] * exp2f(tops[from][g + 8 * i] - high);
    }
    part[i] = exp2f(top[i] - high) / all;
  }
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
#pragma unroll
    for (int n = 0; n < 32; n++) { // [row][number]
      partial[warp][g + n / 16 * 8][16 * t + n % 16] = total[h][n % 8][n / 8] * part[n / 16];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * 16; i += blockDim.x) {
      const int pair = first + i / 16, column = i % 16 * 4;
      if (pair < pairs) {
        float all[4] = {};
        for (int from = 0; from < busy; from++) {
#pragma unroll
          for (int n = 0; n < 4; n++) {
            all[n] += partial[from][i / 16][column + n];
          }
        }
        auto *to = y + ((size_t)(out + pair / group) * heads + blockIdx.y * group + pair % group) * SIZE + h * 64 + column;
        *reinterpret_cast<uint2 *>(to) = make_uint2(ragged_round(all[0], all[1]), ragged_round(all[2], all[3]));
      }
    }
    __syncthreads();
  }
)";

#endif
