// The sources of two CUDA kernels for products with a few rows.
//
// x [tokens, in] times w [out, in] transposed: y [tokens, out], for up to 128
// tokens. w is packed as MLX does: 4 bits a number, scales and biases for each
// group of 64. The numbers of x, the scales and the biases are bfloat16; sums
// are float32. Products are the tensor cores' (mma.m16n8k16: 16 rows of w, 8
// tokens, 16 columns). The framework's own kernel has tiles of 128 tokens and
// takes as long for 17 as for them all. Both kernels are sources that it compiles
// when they are first used (mlx::fast::cuda_kernel).
//
// few_rows is for up to 16 tokens. A decode step reads every weight once and
// does little else, so it is built to keep reads under way: a block has 16 rows
// of w, a warp 512 columns of them at a time (or what is left), all of which it asks for before it
// computes; numbers of x come from the cache. A number q of 4 bits becomes 128+q
// by setting the exponent of a bfloat16 around it; as
//   sum (s q + b) x  =  s sum (128+q) x  +  (b - 128 s) sum x
// in each group, nothing else has to be done to it. The sums of x are another
// product, by ones. The columns of one mma may be in any order that both operands
// share: lane t of the four that have a row holds columns 16t to 16t+15 of a
// group, and takes pairs (i, i+4) of each 8 of them, as a mask finds them in a
// word.
//
// some_rows is for more. There every block would read all of x, and those reads
// would take longer than those of w (H100, Qwen3-8B's matrices by 49 tokens: 12.8
// ms; this kernel 6.5). A block has 64 rows of w and 32 tokens, a warp 32 rows
// and every second group. What is next of x lies in shared memory before it is
// needed, and the scales with it; weights are s q + b, rounded as the framework's
// own kernel does. Words are spread so that columns stand in pairs as those of x
// do.
//
// TestFewRowsKernelOnTheProcessor runs both without a GPU; the self-test of the
// engine (bfloat16: a few rows by 4 bits) does on one.

#ifndef METALFLEET_FEW_ROWS_H
#define METALFLEET_FEW_ROWS_H

static constexpr int few_rows = 16, few_rows_outputs = 16, few_rows_columns = 512, few_rows_warps = 8;
static constexpr int some_rows = 128, some_rows_outputs = 64, some_rows_at_once = 32, some_rows_threads = 128;

// One product of the tensor cores: c += a b.
static const char *const few_rows_product = R"(
__device__ __forceinline__ void few_rows_mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
)";

static const char *const few_rows_numbers = R"(
// Numbers i and i+4 of a word of 8, plus 128.
__device__ __forceinline__ unsigned few_rows_pair(unsigned word, int i) { return ((word >> (4 * i)) & 0x000f000fu) | 0x43004300u; }

// Number i of 8.
__device__ __forceinline__ float few_rows_at(const uint4 &v, int i) {
  unsigned pair = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
  return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

// Numbers of 8 groups; without WHOLE, of some, which lie anywhere.
template <bool WHOLE, class T> __device__ __forceinline__ uint4 few_rows_groups(const T *from, int groups) {
  if (WHOLE) {
    return *reinterpret_cast<const uint4 *>(from);
  }
  const auto *bits = reinterpret_cast<const unsigned short *>(from);
  unsigned pairs[4] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    pairs[i / 2] |= i < groups ? (unsigned)bits[i] << 16 * (i % 2) : 0;
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
)";

// TILES of 8 tokens each. Unless rows are WHOLE, in multiples of 512 columns, their
// last groups of 64 are fewer than 8. Unless GATE is 0, the first half of the rows of w is
// a gate of the second (row_kernels.h), and a block has 8 rows of each: y [tokens, out/2].
static const char *const few_rows_source = R"(
  __shared__ float partial[8][TILES][16 * 8];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tokens = x_shape[0], in = x_shape[1], out = w_shape[0];
  constexpr int OWN = GATE ? 8 : 16;
  const size_t row = (size_t)blockIdx.x * OWN + g, other = GATE ? out / 2 : 8;
  const uint2 *w0 = reinterpret_cast<const uint2 *>(w + row * (in / 8)) + t, *w1 = w0 + other * (in / 16);
  const auto *s0 = scales + row * (in / 64), *s1 = s0 + other * (in / 64);
  const auto *b0 = biases + row * (in / 64), *b1 = b0 + other * (in / 64);
  const unsigned one = 0x3f803f80u;

  float total[TILES][4] = {};
  for (int at = warp * 512; at < in; at += warps * 512) {
    const int groups = WHOLE || in - at > 512 ? 8 : (in - at) / 64;
    uint2 q0[8], q1[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (i < groups) {
        q0[i] = __ldcs(w0 + at / 16 + i * 4);
        q1[i] = __ldcs(w1 + at / 16 + i * 4);
      }
    }
    const uint4 sa = few_rows_groups<WHOLE>(s0 + at / 64, groups), sb = few_rows_groups<WHOLE>(s1 + at / 64, groups);
    const uint4 ba = few_rows_groups<WHOLE>(b0 + at / 64, groups), bb = few_rows_groups<WHOLE>(b1 + at / 64, groups);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (i >= groups) {
        break;
      }
      const float s = few_rows_at(sa, i), r = few_rows_at(sb, i);
      const float b = few_rows_at(ba, i) - 128.0f * s, c = few_rows_at(bb, i) - 128.0f * r;
      float dot[TILES][4] = {}, sum[TILES][4] = {};
      uint4 v[TILES][2];
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        const int token = n * 8 + g;
        v[n][0] = v[n][1] = make_uint4(0, 0, 0, 0);
        if (token < tokens) {
          const uint4 *from = reinterpret_cast<const uint4 *>(x + (size_t)token * in + at + i * 64 + t * 16);
          v[n][0] = from[0];
          v[n][1] = from[1];
        }
      }
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const unsigned p = j == 0 ? q0[i].x : q0[i].y, q = j == 0 ? q1[i].x : q1[i].y;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
          const uint4 u = v[n][j];
          const unsigned x04 = __byte_perm(u.x, u.z, 0x5410), x15 = __byte_perm(u.x, u.z, 0x7632);
          const unsigned x26 = __byte_perm(u.y, u.w, 0x5410), x37 = __byte_perm(u.y, u.w, 0x7632);
          few_rows_mma(dot[n], few_rows_pair(p, 0), few_rows_pair(q, 0), few_rows_pair(p, 1), few_rows_pair(q, 1), x04, x15);
          few_rows_mma(dot[n], few_rows_pair(p, 2), few_rows_pair(q, 2), few_rows_pair(p, 3), few_rows_pair(q, 3), x26, x37);
          few_rows_mma(sum[n], one, one, one, one, x04, x15);
          few_rows_mma(sum[n], one, one, one, one, x26, x37);
        }
      }
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        total[n][0] += s * dot[n][0] + b * sum[n][0];
        total[n][1] += s * dot[n][1] + b * sum[n][1];
        total[n][2] += r * dot[n][2] + c * sum[n][2];
        total[n][3] += r * dot[n][3] + c * sum[n][3];
      }
    }
  }
#pragma unroll
  for (int n = 0; n < TILES; n++) { // [token][row]
    partial[warp][n][(2 * t) * 16 + g] = total[n][0];
    partial[warp][n][(2 * t + 1) * 16 + g] = total[n][1];
    partial[warp][n][(2 * t) * 16 + g + 8] = total[n][2];
    partial[warp][n][(2 * t + 1) * 16 + g + 8] = total[n][3];
  }
  __syncthreads();
  auto sum_of = [&](int i) {
    float all = 0;
    for (int from = 0; from < warps; from++) {
      all += partial[from][i / 128][i % 128];
    }
    return all;
  };
  for (int i = threadIdx.x; i < tokens * OWN; i += blockDim.x) {
    const int at = i / OWN * 16 + i % OWN;
    const float value = GATE ? gate_of(GATE, gate_rounded(sum_of(at)), gate_rounded(sum_of(at + OWN))) : sum_of(at);
    y[(size_t)(i / OWN) * (GATE ? out / 2 : out) + blockIdx.x * OWN + i % OWN] = __float2bfloat16(value);
  }
)";

// Instructions of some_rows other than products: two bfloat16 a b + c, and copies
// of 16 bytes to shared memory (zeros where there are none), which are complete
// once all but the last N groups have arrived.
static const char *const some_rows_machine = R"(
__device__ __forceinline__ unsigned some_rows_fma(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ void some_rows_ask(uint4 *to, const void *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void some_rows_begin() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void some_rows_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
)";

static const char *const some_rows_numbers = R"(
// Numbers 0 and 1 of the lower half of a word, and 2 and 3, 16 bits apart.
__device__ __forceinline__ unsigned some_rows_spread(unsigned half) { return half | (half << 12); }

// Two of them times a scale plus a bias, each in both halves.
__device__ __forceinline__ unsigned some_rows_weights(unsigned spread, unsigned s, unsigned b) {
  return some_rows_fma(some_rows_fma((spread & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc300c300u), s, b);
}
)";

static const char *const some_rows_source = R"(
  // Of x: 128 columns, a stage, are computed at a time, and as many stages as have
  // 512 columns are there or on their way. SPACED columns keep rows off each
  // other's banks.
  constexpr int TOKENS = 32, ROWS = 64, STAGES = 4, SPACED = 136, PER = 4;
  __shared__ uint4 room[STAGES * TOKENS * SPACED / 8 + 2 * 2 * ROWS];
  uint4 *const factors = room + STAGES * TOKENS * SPACED / 8; // [span % 2][scales, biases][ROWS]
  const int thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4, m = thread / 32 % 2, part = thread / 64;
  const int tokens = x_shape[0], in = x_shape[1], out = w_shape[0], spans = in / 512;
  const int first = blockIdx.y * TOKENS, row0 = blockIdx.x * ROWS;

  const auto *from = x + (size_t)(first + thread / 16) * in + thread % 16 * 8;
  auto ask = [&](int stage) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
      const bool there = first + thread / 16 + i * 8 < tokens;
      some_rows_ask(room + ((stage * TOKENS + thread / 16 + i * 8) * SPACED) / 8 + thread % 16, there ? from + (size_t)i * 8 * in : x, there);
    }
    from += 128;
  };
  auto ask_factors = [&](int span) {
    const int row = row0 + thread % ROWS;
    some_rows_ask(factors + span % 2 * 2 * ROWS + thread, (thread < ROWS ? scales : biases) + (size_t)(row < out ? row : 0) * (in / 64) + span * 8, row < out);
  };
  const uint2 *words[2][2];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int row = row0 + m * 32 + i * 8 + g;
    words[i / 2][i % 2] = reinterpret_cast<const uint2 *>(w + (size_t)(row < out ? row : 0) * (in / 8)) + part * 4 + t;
  }
  uint2 q[STAGES][2][2];
  auto fetch = [&](int stage) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      q[stage][i / 2][i % 2] = __ldcs(words[i / 2][i % 2]);
      words[i / 2][i % 2] += 8;
    }
  };

#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) {
    fetch(stage);
  }
  ask_factors(0);
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) {
    ask(stage);
    some_rows_begin();
  }
  float total[2][TOKENS / 8][4] = {};
  for (int span = 0; span < spans; span++) {
    const auto *own = reinterpret_cast<const unsigned short *>(factors + span % 2 * 2 * ROWS + m * 32 + g) + part;
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
      some_rows_wait<STAGES - 2>();
      __syncthreads();
      if (stage == 0 && span + 1 < spans) {
        ask_factors(span + 1);
      }
      if (stage == 0 || span + 1 < spans) {
        ask((stage + STAGES - 1) % STAGES);
      }
      some_rows_begin();
      const uint4 *at = room + (stage * TOKENS + g) * (SPACED / 8) + part * 8 + t * 2;
#pragma unroll
      for (int j = 0; j < 2; j++) {
        unsigned a[2][2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const unsigned s = own[i * 64 + stage * 2] * 0x10001u, b = own[ROWS * 8 + i * 64 + stage * 2] * 0x10001u;
          const uint2 both = q[stage][i / 2][i % 2];
          const unsigned word = j == 0 ? both.x : both.y, low = some_rows_spread(word & 0xffffu), high = some_rows_spread(word >> 16);
          unsigned *of = a[i / 2][i % 2];
          of[0] = some_rows_weights(low, s, b);
          of[1] = some_rows_weights(low >> 8, s, b);
          of[2] = some_rows_weights(high, s, b);
          of[3] = some_rows_weights(high >> 8, s, b);
        }
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
          const uint4 u = at[n * SPACED + j];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            few_rows_mma(total[r][n], a[r][0][0], a[r][1][0], a[r][0][1], a[r][1][1], u.x, u.y);
          }
#pragma unroll
          for (int r = 0; r < 2; r++) {
            few_rows_mma(total[r][n], a[r][0][2], a[r][1][2], a[r][0][3], a[r][1][3], u.z, u.w);
          }
        }
      }
      if (span + 1 < spans) {
        fetch(stage);
      }
    }
  }
  some_rows_wait<0>();
  __syncthreads();
  float *sums = reinterpret_cast<float *>(room); // [part][token][row]
#pragma unroll
  for (int i = 0; i < 2 * TOKENS / 8 * 4; i++) {
    const int r = i / (TOKENS / 2), n = i / 4 % (TOKENS / 8), of = i % 4;
    sums[(part * TOKENS + n * 8 + 2 * t + of % 2) * ROWS + (m * 2 + r) * 16 + g + of / 2 * 8] = total[r][n][of];
  }
  __syncthreads();
  for (int i = thread; i < TOKENS * ROWS; i += blockDim.x) {
    const int token = first + i / ROWS, row = row0 + i % ROWS;
    if (token < tokens && row < out) {
      y[(size_t)token * out + row] = __float2bfloat16(sums[i] + sums[TOKENS * ROWS + i]);
    }
  }
)";

#endif
