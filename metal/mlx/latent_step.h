// The source of a CUDA kernel, compiled by the framework when it is first used
// (mlx::fast::cuda_kernel): latent attention of n tokens, each to a slot of a slab.
// Heads of that size have no kernel in the framework, and the products that it takes
// instead cost the host more than the rest of the layer's attention.
//
// q [rows, heads, SIZE] attends to keys [slots, 1, capacity, SIZE], whose first VALUE
// numbers are the values: y [n, heads, VALUE]. Numbers are bfloat16, scores and sums
// float32. list has the number of heads, the scale of scores for powers of two, and of
// each token its row of q, its slot, how many tokens it sees, and the capacity.
//
// A block has one head of one token. Its warps take a key each in turn, with a softmax
// of their own, which are merged at the end; a key is read once, as such and as a value.
//
// TestLatentStepKernelOnTheProcessor runs it without a GPU.

#ifndef METALFLEET_LATENT_STEP_H
#define METALFLEET_LATENT_STEP_H

// One block reads all that a token sees: a long context needs more of the device.
static constexpr int latent_step_threads = 512, latent_step_longest = 2048;

static const char *const latent_step_source = R"(
  constexpr int WARPS = 16, WORDS = SIZE / 64, KEPT = VALUE / 64;
  __shared__ float partial[WARPS][VALUE], tops[WARPS], sums[WARPS];
  const int heads = list[0], head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, *of = list + 2 + 4 * blockIdx.y;
  const float scale = __uint_as_float(list[1]), none = __uint_as_float(0xff800000u);
  const int seen = of[2];
  const unsigned *query = reinterpret_cast<const unsigned *>(q + ((size_t)of[0] * heads + head) * SIZE) + lane;
  const unsigned *key = reinterpret_cast<const unsigned *>(keys + (size_t)of[1] * of[3] * SIZE) + lane;
  float low[WORDS], high[WORDS], total[2 * KEPT] = {}, top = none, sum = 0;
  unsigned next[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    low[i] = __uint_as_float(query[32 * i] << 16) * scale;
    high[i] = __uint_as_float(query[32 * i] & 0xffff0000u) * scale;
    next[i] = warp < seen ? key[(size_t)warp * (SIZE / 2) + 32 * i] : 0;
  }
  for (int at = warp; at < seen; at += WARPS) {
    unsigned own[WORDS];
    float dot = 0;
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
      total[2 * i] = total[2 * i] * shrunk + power * __uint_as_float(own[i] << 16);
      total[2 * i + 1] = total[2 * i + 1] * shrunk + power * __uint_as_float(own[i] & 0xffff0000u);
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
    float value = 0;
    for (int from = 0; from < WARPS; from++) {
      value += partial[from][i] * exp2f(tops[from] - top);
    }
    y[((size_t)blockIdx.y * heads + head) * VALUE + i] = __float2bfloat16(value / all);
  }
)";

#endif
