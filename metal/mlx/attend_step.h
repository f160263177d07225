// The source of a CUDA kernel, compiled by the framework when it is first used
// (mlx::fast::cuda_kernel): attention of n tokens, each to a slot of a slab, by heads of
// sizes that have no kernel in the framework. The products and the softmax that it takes
// instead cost the host more than the rest of the layer's attention.
//
// q [rows, heads, SIZE] attends to keys [slots, kv_heads, capacity, SIZE] and values
// [slots, kv_heads, capacity, VALUE]; unless they are APART, values are the first VALUE
// numbers of keys: y [n, heads, VALUE]. Numbers are bfloat16, scores and sums float32.
// list has the numbers of heads and of kv_heads, the scale of scores for powers of two,
// and of each token its row of q, its slot, the first token it sees, how many it sees from
// there, and the capacity.
//
// A block has one head of one token. Its warps take a key each in turn, with a softmax
// of their own, which are merged at the end; a latent key is read once, as such and as a
// value.
//
// TestAttendStepKernelOnTheProcessor runs it without a GPU.

#ifndef METALFLEET_ATTEND_STEP_H
#define METALFLEET_ATTEND_STEP_H

// One block reads all that a token sees: a long context needs more of the device.
static constexpr int attend_step_threads = 512, attend_step_longest = 2048;

static const char *const attend_step_source = R"(
  constexpr int WARPS = 16, WORDS = SIZE / 64, KEPT = VALUE / 64;
  __shared__ float partial[WARPS][VALUE], tops[WARPS], sums[WARPS];
  const int heads = list[0], kv_heads = list[1], head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, *of = list + 3 + 5 * blockIdx.y;
  const float scale = __uint_as_float(list[2]), none = __uint_as_float(0xff800000u);
  const int seen = of[3];
  const size_t first = ((size_t)of[1] * kv_heads + head / (heads / kv_heads)) * of[4] + of[2];
  const unsigned *query = reinterpret_cast<const unsigned *>(q + ((size_t)of[0] * heads + head) * SIZE) + lane;
  const unsigned *key = reinterpret_cast<const unsigned *>(keys + first * SIZE) + lane;
  const unsigned *value = reinterpret_cast<const unsigned *>(values + first * VALUE) + lane;
  float low[WORDS], high[WORDS], total[2 * KEPT] = {}, top = none, sum = 0;
  unsigned next[WORDS], next_value[APART ? KEPT : 1];
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    low[i] = __uint_as_float(query[32 * i] << 16) * scale;
    high[i] = __uint_as_float(query[32 * i] & 0xffff0000u) * scale;
    next[i] = warp < seen ? key[(size_t)warp * (SIZE / 2) + 32 * i] : 0;
  }
#pragma unroll
  for (int i = 0; APART && i < KEPT; i++) {
    next_value[i] = warp < seen ? value[(size_t)warp * (VALUE / 2) + 32 * i] : 0;
  }
  for (int at = warp; at < seen; at += WARPS) {
    unsigned own[WORDS], own_value[APART ? KEPT : 1];
    float dot = 0;
#pragma unroll
    for (int i = 0; APART && i < KEPT; i++) {
      own_value[i] = next_value[i];
      next_value[i] = at + WARPS < seen ? value[(size_t)(at + WARPS) * (VALUE / 2) + 32 * i] : 0;
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
      own[i] = next[i];
      next[i] = at + WARPS < seen ? key[(size_t)(at + WARPS) * (SIZE / 2) + 32 * i] : 0;
      dot += low[i] * __uint_as_float(own[i] << 16) + high[i] * __uint_as_float(own[i] & 0xffff0000u);
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
      const unsigned pair = APART ? own_value[i] : own[i];
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
