// The source of a CUDA kernel, compiled by the framework when it is first used
// (mlx::fast::cuda_kernel): one row of each of n recurrent states, from the convolution
// to what is read. By operations of the framework that is some thirty launches, which
// take the host longer than all else of a layer (H200, Qwen3.5-35B-A3B: 180 us of 350).
//
// q, k and v are rows [n, ...] of queries, keys and values, seen [n, 1, TAPS-1,
// CHANNELS] the rows before them and state [n, VALUE_HEADS, KEY_SIZE, VALUE_SIZE], both
// in float32; y is [n, VALUE_HEADS*VALUE_SIZE], after and next are what becomes of seen
// and state. decay and beta are rows of what gates are made of. SPACE is the rule of
// a state space; otherwise it is the delta rule. Its arithmetic is that of
// bridge_recur.cpp (rule_once), in float32.
//
// A block has one head of one state: a thread has a column of a quarter of its keys.
//
// TestRecurStepKernelOnTheProcessor runs it without a GPU.

#ifndef METALFLEET_RECUR_STEP_H
#define METALFLEET_RECUR_STEP_H

static constexpr int recur_step_parts = 4;

static const char *const recur_step_source = R"(
  constexpr int PARTS = 4, PER = KEY_SIZE / PARTS, WIDTH = KEY_HEADS * KEY_SIZE, CHANNELS = 2 * WIDTH + VALUE_HEADS * VALUE_SIZE, TIMES = VALUE_HEADS / KEY_HEADS;
  __shared__ float both[2][KEY_SIZE], values[VALUE_SIZE], parts[2][PARTS][VALUE_SIZE], scales[2];
  const int head = blockIdx.x, row = blockIdx.y, from = head / TIMES, thread = threadIdx.x, column = thread % VALUE_SIZE, part = thread / VALUE_SIZE;

  // What was convolved of a channel, where its newest number is known.
  auto mixed = [&](float newest, int channel, bool mine) {
    const float *before = seen + (size_t)row * (TAPS - 1) * CHANNELS + channel;
    float *kept = after + (size_t)row * (TAPS - 1) * CHANNELS + channel, sum = 0;
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
      const float of = j + 1 < TAPS ? before[j * CHANNELS] : newest;
      sum += of * (float)kernel[channel * TAPS + j];
      if (mine && j > 0) {
        kept[(j - 1) * CHANNELS] = of;
      }
    }
    sum += SHIFTED ? (float)shift[channel] : 0.0f;
    return sum / (1.0f + expf(-sum));
  };
  for (int i = thread; i < 2 * KEY_SIZE; i += blockDim.x) {
    const int which = i / KEY_SIZE, at = from * KEY_SIZE + i % KEY_SIZE;
    const float newest = which == 0 ? (float)q[row * q_strides[0] + at] : (float)k[row * k_strides[0] + at];
    both[which][i % KEY_SIZE] = mixed(newest, which * WIDTH + at, head % TIMES == 0);
  }
  if (part == 0) {
    const int at = head * VALUE_SIZE + column;
    values[column] = mixed((float)v[row * v_strides[0] + at], 2 * WIDTH + at, true);
  }
  __syncthreads();
  if (thread < 64) { // a warp for queries, another for keys
    float squares = 0;
    for (int i = thread % 32; i < KEY_SIZE; i += 32) {
      squares += both[thread / 32][i] * both[thread / 32][i];
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, mask);
    }
    if (thread % 32 == 0) {
      const float root = rsqrtf(squares / KEY_SIZE + 1e-6f / KEY_SIZE);
      scales[thread / 32] = SPACE ? 1.0f : root * (thread == 0 ? 1.0f / KEY_SIZE : rsqrtf((float)KEY_SIZE));
    }
  }
  __syncthreads();

  const float raw = (float)decay[row * decay_strides[0] + head] + (float)bias[head];
  const float soft = fmaxf(raw, 0.0f) + log1pf(expf(-fabsf(raw)));
  const float step = SPACE ? fminf(fmaxf(soft, __uint_as_float(LOW)), __uint_as_float(HIGH)) : soft;
  const float stays = expf(-expf((float)rate[head]) * step);
  const float takes = SPACE ? step : 1.0f / (1.0f + expf(-(float)beta[row * beta_strides[0] + head]));

  const size_t own = (((size_t)row * VALUE_HEADS + head) * KEY_SIZE + part * PER) * VALUE_SIZE + column;
  const float *queries = both[0] + part * PER, *keys = both[1] + part * PER;
  float held[PER], said = 0, read = 0;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    held[i] = state[own + (size_t)i * VALUE_SIZE];
  }
  float news = values[column] * takes;
  if (!SPACE) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
      said += keys[i] * held[i];
    }
    parts[0][part][column] = said * scales[1];
    __syncthreads();
    said = (parts[0][0][column] + parts[0][1][column]) + (parts[0][2][column] + parts[0][3][column]);
    news = (values[column] - said * stays) * takes;
  }
#pragma unroll
  for (int i = 0; i < PER; i++) {
    held[i] = held[i] * stays + keys[i] * scales[1] * news;
    read += queries[i] * held[i];
    next[own + (size_t)i * VALUE_SIZE] = held[i];
  }
  parts[1][part][column] = read * scales[0];
  __syncthreads();
  if (part == 0) {
    const float sum = (parts[1][0][column] + parts[1][1][column]) + (parts[1][2][column] + parts[1][3][column]);
    y[((size_t)row * VALUE_HEADS + head) * VALUE_SIZE + column] = sum + (SPACE ? (float)skip[head] * values[column] : 0.0f);
  }
)";

#endif
