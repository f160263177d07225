// The source of a CUDA kernel, compiled by the framework when it is first used
// (mlx::fast::cuda_kernel): attention of n tokens, each to a slot of a slab, by heads of
// sizes that have no kernel in the framework. The products and the softmax that it takes
// instead cost the host more than the rest of the layer's attention, and so do the norms
// and rotations before it and the write of what is new, which the kernel does as well.
//
// q [rows, heads, SIZE] attends to keys [slots, kv_heads, capacity, SIZE] and values
// [slots, kv_heads, capacity, VALUE]; unless they are APART, values are the first VALUE
// numbers of keys: y [n, heads, VALUE]. Numbers are bfloat16, scores and sums float32.
// list has the numbers of heads and of kv_heads, the scale of scores for powers of two,
// whether the last token seen is new, and of each token its row of q, its slot, the first
// token it sees, how many it sees from there, and the capacity.
//
// A head is the first Q_SPLIT of its numbers, q0 [rows, heads, Q_SPLIT], followed by those
// of q1. A new key is k0 and k1 likewise, a new value v; the kernel writes them into keys
// and values, although it is given those to read: what follows has to depend on y. First
// parts are NORMED (the sum of 1 for q0, 2 for k0 and 4 for v) by a weight and the bits of
// an epsilon; parts are TURNED (1 for q0, 2 for q1, 4 for k0, 8 for k1) by the positions of
// rows, the first TURN numbers of each, pairs of neighbours or of halves, at frequencies
// of a base, whose logarithm has the bits BASE, or at the reciprocals of PERIODS. Numbers
// are rounded where the framework's operations round them.
//
// A block has one head of one token. Its first warps bring its query, its key and its
// value into shared memory. Its warps take a key each in turn, with a softmax
// of their own, which are merged at the end; a latent key is read once, as such and as a
// value.
//
// TestAttendStepKernelOnTheProcessor runs it without a GPU, TestAStepByOneKernel on one.

#ifndef METALFLEET_ATTEND_STEP_H
#define METALFLEET_ATTEND_STEP_H

// One block reads all that a token sees: a long context needs more of the device.
static constexpr int attend_step_threads = 512, attend_step_longest = 2048;

static const char *const attend_step_numbers = R"(
__device__ __forceinline__ float attend_step_rounded(float v) { return __uint_as_float((unsigned)__bfloat16_as_ushort(__float2bfloat16(v)) << 16); }

// Two rounded numbers in a word.
__device__ __forceinline__ unsigned attend_step_pair(const float *v) { return __float_as_uint(v[0]) >> 16 | (__float_as_uint(v[1]) & 0xffff0000u); }
)";

static const char *const attend_step_source = R"(
  constexpr int WARPS = 16, WORDS = SIZE / 64, KEPT = VALUE / 64;
  __shared__ float partial[WARPS][VALUE], tops[WARPS], sums[WARPS], own_query[SIZE], own_key[SIZE], own_value[VALUE];
  const int heads = list[0], kv_heads = list[1], head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, *of = list + 4 + 5 * blockIdx.y;
  const float scale = __uint_as_float(list[2]), none = __uint_as_float(0xff800000u);
  const bool is_new = list[3] != 0;
  const int seen = of[3], stored = is_new ? seen - 1 : seen, kv_head = head / (heads / kv_heads);
  const size_t first = ((size_t)of[1] * kv_heads + kv_head) * of[4] + of[2];
  const unsigned *key = reinterpret_cast<const unsigned *>(keys + first * SIZE) + lane;
  const unsigned *value = reinterpret_cast<const unsigned *>(values + first * VALUE) + lane;
  float low[WORDS], high[WORDS], total[2 * KEPT] = {}, top = none, sum = 0;
  unsigned next[WORDS], next_value[APART ? KEPT : 1];
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    next[i] = warp < stored ? key[(size_t)warp * (SIZE / 2) + 32 * i] : 0;
  }
#pragma unroll
  for (int i = 0; APART && i < KEPT; i++) {
    next_value[i] = warp < stored ? value[(size_t)warp * (VALUE / 2) + 32 * i] : 0;
  }

  // By one warp: a vector of two parts, the first of split numbers, normed and turned.
  auto bring = [&](float *to, int width, int split, const auto *a, const auto &a_strides, const auto *b, const auto &b_strides, int of_head, bool normed, const auto *weight, int eps, int turned) {
    a += of[0] * a_strides[0] + of_head * a_strides[1];
    b += of[0] * b_strides[0] + of_head * b_strides[1];
    float squares = 0;
    for (int i = lane; i < width; i += 32) {
      to[i] = i < split ? (float)a[i * a_strides[2]] : (float)b[(i - split) * b_strides[2]];
      squares += i < split ? to[i] * to[i] : 0;
    }
    if (normed) {
      for (int mask = 16; mask > 0; mask /= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, mask);
      }
      const float by = rsqrtf(squares / split + __uint_as_float(eps));
      for (int i = lane; i < split; i += 32) {
        to[i] = attend_step_rounded((float)weight[i] * attend_step_rounded(to[i] * by));
      }
    }
    __syncwarp();
    for (int part = 0; part < 2; part++) {
      for (int pair = lane; turned >> part & 1 && pair < TURN / 2; pair += 32) {
        const int i = (part == 0 ? 0 : split) + (NEIGHBOURS ? 2 * pair : pair), j = NEIGHBOURS ? i + 1 : i + TURN / 2;
        const float by = PERIODS ? 1.0f / (float)periods[pair] : exp2f(-((float)pair / (TURN / 2)) * __uint_as_float(BASE));
        const float angle = __uint_as_float(STEP) * (float)positions[of[0]] * by, c = cosf(angle), s = sinf(angle), x = to[i], z = to[j];
        to[i] = attend_step_rounded(x * c - z * s);
        to[j] = attend_step_rounded(x * s + z * c);
      }
    }
  };
  if (warp == 0) {
    bring(own_query, SIZE, Q_SPLIT, q0, q0_strides, q1, q1_strides, head, NORMED & 1, q_weight, Q_EPS, TURNED & 3);
  } else if (is_new && warp == 1) {
    bring(own_key, SIZE, K_SPLIT, k0, k0_strides, k1, k1_strides, kv_head, NORMED & 2, k_weight, K_EPS, TURNED >> 2);
  } else if (is_new && APART && warp == 2) {
    bring(own_value, VALUE, VALUE, v, v_strides, v, v_strides, kv_head, NORMED & 4, v_weight, V_EPS, 0);
  }
  __syncthreads();
  if (is_new && head % (heads / kv_heads) == 0) {
    for (int i = threadIdx.x; i < SIZE / 2; i += blockDim.x) {
      ((unsigned *)(keys + (first + stored) * SIZE))[i] = attend_step_pair(own_key + 2 * i);
    }
    for (int i = threadIdx.x; APART && i < VALUE / 2; i += blockDim.x) {
      ((unsigned *)(values + (first + stored) * VALUE))[i] = attend_step_pair(own_value + 2 * i);
    }
  }
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    low[i] = own_query[2 * (lane + 32 * i)] * scale;
    high[i] = own_query[2 * (lane + 32 * i) + 1] * scale;
  }
  for (int at = warp; at < seen; at += WARPS) {
    unsigned pairs[WORDS], value_pairs[APART ? KEPT : 1];
    float dot = 0;
#pragma unroll
    for (int i = 0; APART && i < KEPT; i++) {
      value_pairs[i] = at < stored ? next_value[i] : attend_step_pair(own_value + 2 * (lane + 32 * i));
      next_value[i] = at + WARPS < stored ? value[(size_t)(at + WARPS) * (VALUE / 2) + 32 * i] : 0;
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
      pairs[i] = at < stored ? next[i] : attend_step_pair(own_key + 2 * (lane + 32 * i));
      next[i] = at + WARPS < stored ? key[(size_t)(at + WARPS) * (SIZE / 2) + 32 * i] : 0;
      dot += low[i] * __uint_as_float(pairs[i] << 16) + high[i] * __uint_as_float(pairs[i] & 0xffff0000u);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      dot += __shfl_xor_sync(0xffffffffu, dot, mask);
    }
    const float highest = fmaxf(top, dot), shrunk = exp2f(top - highest), power = exp2f(dot - highest);
    top = highest;
    sum = sum * shrunk + power;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
      const unsigned pair = APART ? value_pairs[i] : pairs[i];
      total[2 * i] = total[2 * i] * shrunk + power * __uint_as_float(pair << 16);
      total[2 * i + 1] = total[2 * i + 1] * shrunk + power * __uint_as_float(pair & 0xffff0000u);
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * KEPT; i++) {
    partial[warp][2 * (lane + 32 * (i / 2)) + i % 2] = total[i];
  }
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
  __syncthreads();
  float all = 0;
  for (int from = 0; from < WARPS; from++) {
    top = fmaxf(top, tops[from]);
  }
  for (int from = 0; from < WARPS; from++) {
    all += sums[from] * exp2f(tops[from] - top);
  }
  for (int i = threadIdx.x; i < VALUE; i += blockDim.x) {
    float sum_of = 0;
    for (int from = 0; from < WARPS; from++) {
      sum_of += partial[from][i] * exp2f(tops[from] - top);
    }
    y[((size_t)blockIdx.y * heads + head) * VALUE + i] = __float2bfloat16(sum_of / all);
  }
)";

#endif
