// The source of a CUDA kernel, compiled by the framework when it is first used
// (mlx::fast::cuda_kernel).
//
// x [tokens, in] times w [out, in] transposed: y [tokens, out], for up to 64
// tokens. w is packed as MLX does: 4 bits a number, scales and biases for each
// group of 64. The numbers of x, the scales and the biases are bfloat16; sums
// are float32.
//
// A decode step reads every weight once and does little else, so the kernel is
// built to keep reads under way: a block has 16 rows of w, a warp 512 columns
// of them at a time, all of which it asks for before it computes. Products are
// the tensor cores' (mma.m16n8k16: 16 rows of w, 8 tokens, 16 columns), so that
// 16 tokens take hardly longer than one; the framework's own kernel, which has
// tiles of 128, takes as long for 33 as for them all. A number q of 4 bits
// becomes 128+q by setting the exponent of a bfloat16 around it; as
//   sum (s q + b) x  =  s sum (128+q) x  +  (b - 128 s) sum x
// in each group, nothing else has to be done to it. The sums of x are another
// product, by ones.
//
// TestFewRowsKernelOnTheProcessor runs it without a GPU; the self-test of the
// engine (bfloat16: a few rows by 4 bits) does on one.
//
// The columns of one mma may be in any order that both operands share. Lane t of
// the four that have a row holds columns 16t to 16t+15 of a group, and takes
// pairs (i, i+4) of each 8 of them, as a mask finds them in a word.

#ifndef METALFLEET_FEW_ROWS_H
#define METALFLEET_FEW_ROWS_H

static constexpr int few_rows = 64, few_rows_outputs = 16, few_rows_columns = 512, few_rows_warps = 8;

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
)";

// TILES of 8 tokens each, of which up to four are in registers at once, and two of eight.
static const char *const few_rows_source = R"(
  __shared__ float partial[8][TILES][16 * 8];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tokens = x_shape[0], in = x_shape[1], out = w_shape[0];
  const size_t row = (size_t)blockIdx.x * 16 + g;
  const uint2 *w0 = reinterpret_cast<const uint2 *>(w + row * (in / 8)) + t, *w1 = w0 + 8 * (in / 16);
  const uint4 *s0 = reinterpret_cast<const uint4 *>(scales + row * (in / 64)), *s1 = s0 + in / 64;
  const uint4 *b0 = reinterpret_cast<const uint4 *>(biases + row * (in / 64)), *b1 = b0 + in / 64;
  const unsigned one = 0x3f803f80u;

  constexpr int AT_ONCE = TILES <= 4 ? TILES : 2;
  float total[TILES][4] = {};
  for (int at = warp * 512; at < in; at += warps * 512) {
    uint2 q0[8], q1[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      q0[i] = __ldcs(w0 + at / 16 + i * 4);
      q1[i] = __ldcs(w1 + at / 16 + i * 4);
    }
    const uint4 sa = s0[at / 512], sb = s1[at / 512], ba = b0[at / 512], bb = b1[at / 512];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float s = few_rows_at(sa, i), r = few_rows_at(sb, i);
      const float b = few_rows_at(ba, i) - 128.0f * s, c = few_rows_at(bb, i) - 128.0f * r;
#pragma unroll
      for (int first = 0; first < TILES; first += AT_ONCE) {
        float dot[AT_ONCE][4] = {}, sum[AT_ONCE][4] = {};
        uint4 v[AT_ONCE][2];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
          const int token = (first + n) * 8 + g;
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
          for (int n = 0; n < AT_ONCE; n++) {
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
        for (int n = 0; n < AT_ONCE; n++) {
          total[first + n][0] += s * dot[n][0] + b * sum[n][0];
          total[first + n][1] += s * dot[n][1] + b * sum[n][1];
          total[first + n][2] += r * dot[n][2] + c * sum[n][2];
          total[first + n][3] += r * dot[n][3] + c * sum[n][3];
        }
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
  for (int i = threadIdx.x; i < tokens * 16; i += blockDim.x) {
    float all = 0;
    for (int from = 0; from < warps; from++) {
      all += partial[from][i / 128][i % 128];
    }
    y[(size_t)(i / 16) * out + blockIdx.x * 16 + i % 16] = __float2bfloat16(all);
  }
)";

#endif
