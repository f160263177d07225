// The sources of two CUDA kernels on rows, compiled by the framework when they are first
// used (mlx::fast::cuda_kernel). The framework takes several launches for each.
//
// join_runs puts up to three arrays [rows, 8*W0], [rows, 8*W1] and [rows, 8*W2] side by
// side: y [rows, 8*(W0+W1+W2)]. A thread copies 16 bytes.
//
// geglu is GELU, by tanh, of gate times up, both [rows, width] at any strides:
// y. Numbers are bfloat16, rounded after each operation, as those of the framework are.
// Products whose halves are a gate and what it lets through do that themselves (few_rows.h
// and experts.h).
//
// TestRowKernelsOnTheProcessor runs both without a GPU.

#ifndef METALFLEET_ROW_KERNELS_H
#define METALFLEET_ROW_KERNELS_H

static constexpr int rows_threads = 128;

static const char *const join_runs_source = R"(
  constexpr int RUN = W0 + W1 + W2;
  const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / RUN, column = i % RUN;
  if (row >= p0_shape[0]) {
    return;
  }
  auto at = [](const auto *from, size_t run) { return reinterpret_cast<const uint4 *>(from)[run]; };
  reinterpret_cast<uint4 *>(y)[i] = column < W0     ? at(p0, (size_t)row * W0 + column)
                                  : column < W0 + W1 ? at(p1, (size_t)row * W1 + column - W0)
                                                     : at(p2, (size_t)row * W2 + column - W0 - W1);
)";

// Which unit gates.
static constexpr int gate_none = 0, gate_silu = 1, gate_gelu = 2;

static const char *const gate_numbers = R"(
__device__ __forceinline__ float gate_rounded(float v) { return __uint_as_float((unsigned)__bfloat16_as_ushort(__float2bfloat16(v)) << 16); }

// By SiLU, which is 1, or GELU.
__device__ __forceinline__ float gate_of(int by, float x, float up) {
  auto r = [](float v) { return gate_rounded(v); };
  if (by == 1) {
    return r(x * r(1.0f / (1.0f + expf(-x)))) * up;
  }
  const float inner = r(x + r(r(0.044715f) * r(x * x * x)));
  const float t = r(tanhf(r(r(0.7978845608028654f) * inner)));
  return r(r(0.5f * x) * r(1.0f + t)) * up;
}
)";

static const char *const geglu_source = R"(
  const int width = gate_shape[1], i = blockIdx.x * blockDim.x + threadIdx.x, row = i / width, column = i % width;
  if (row >= gate_shape[0]) {
    return;
  }
  y[i] = __float2bfloat16(gate_of(2, (float)gate[(size_t)row * gate_strides[0] + column * gate_strides[1]], (float)up[(size_t)row * up_strides[0] + column * up_strides[1]]));
)";

#endif
