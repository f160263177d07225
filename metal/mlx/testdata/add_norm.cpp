// Runs the CUDA kernels of add_norm.h on a processor and compares them with plain float64.
// numbers.inc, kernel.inc and cut.inc are their text. Prints the largest error for each case, as a
// part of 1 and what was wanted.

#include "cuda.h"

#include <random>

inline unsigned short __bfloat16_as_ushort(bfloat16 v) { return v; }
inline unsigned __float_as_uint(float v) {
  unsigned out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }

namespace {

#include "numbers.inc"

struct number { // bfloat16, which converts
  bfloat16 bits;
  operator float() const { return wide(bits); }
};

constexpr float eps = 0.5f, a_eps = 0.25f, b_eps = 0.125f;
constexpr int K = 3; // of experts
constexpr bool ROUNDED = false;

template <int WIDTH, int THREADS, int A, int B, bool SCALED> void kernel(const number *a0, const number *a1, const number *b0, const number *b1, const number *by, const number *weight, const float *shares, number *sum, number *y) {
  const int EPS = (int)__float_as_uint(eps), A_EPS = (int)__float_as_uint(a_eps), B_EPS = (int)__float_as_uint(b_eps);
#include "kernel.inc"
}

template <int WIDTH, int THREADS> void cut(const number *x, const int *x_shape, const number *weight, number *y) {
  const int EPS = (int)__float_as_uint(eps);
#include "cut.inc"
}

// Of the first WIDTH of columns.
template <int WIDTH> double error_of_cut(int columns) {
  constexpr int rows = 3, threads = std::min(512, (WIDTH / 8 + 31) / 32 * 32);
  std::mt19937 random(WIDTH);
  auto some = [&](int n) {
    std::vector<number> out(static_cast<size_t>(n));
    for (auto &v : out) {
      v.bits = __float2bfloat16(std::uniform_real_distribution<float>(-2, 2)(random));
    }
    return out;
  };
  const auto x = some(rows * columns), weight = some(WIDTH);
  std::vector<number> y(rows * WIDTH + 8, {0x7fc1});
  const int shape[] = {rows, columns};
  for (int row = 0; row < rows; row++) {
    run_block(row, 0, threads, [&] { cut<WIDTH, threads>(x.data(), shape, weight.data(), y.data()); });
  }
  double worst = y[rows * WIDTH].bits == 0x7fc1 ? 0 : 1e9;
  for (int row = 0; row < rows; row++) {
    double squares = 0;
    auto of = [&](int i) { return static_cast<double>(x[static_cast<size_t>(row * columns + i)]); };
    for (int i = 0; i < WIDTH; i++) {
      squares += of(i) * of(i);
    }
    for (int i = 0; i < WIDTH; i++) {
      const double want = of(i) / std::sqrt(squares / WIDTH + eps) * weight[static_cast<size_t>(i)];
      worst = worse(worst, std::fabs(y[static_cast<size_t>(row * WIDTH + i)] - want) / (1 + std::fabs(want)));
    }
  }
  return worst;
}

template <int WIDTH, int A, int B, bool SCALED> double error() {
  constexpr int rows = 2, threads = std::min(512, (WIDTH / 8 + 31) / 32 * 32);
  std::mt19937 random(WIDTH);
  auto some = [&](int n) {
    std::vector<number> out(static_cast<size_t>(n));
    for (auto &v : out) {
      v.bits = __float2bfloat16(std::uniform_real_distribution<float>(-2, 2)(random));
    }
    return out;
  };
  const auto a0 = some(rows * WIDTH * (A > 2 ? K : 1)), a1 = some(A == 1 ? WIDTH : rows * WIDTH), b0 = some(rows * WIDTH * (B > 2 ? K : 1)), b1 = some(B == 1 ? WIDTH : rows * WIDTH), by = some(1), weight = some(WIDTH);
  const float shares[rows * K] = {0.5f, 0.25f, 0.375f, 1, 0.125f, 0.75f};
  std::vector<number> sum(rows * WIDTH, {0x7fc1}), y(rows * WIDTH + 8, {0x7fc1});
  for (int row = 0; row < rows; row++) {
    run_block(row, 0, threads, [&] { kernel<WIDTH, threads, A, B, SCALED>(a0.data(), a1.data(), b0.data(), b1.data(), by.data(), weight.data(), shares, sum.data(), y.data()); });
  }
  auto scale = [](const std::vector<double> &v, double least) {
    double squares = 0;
    for (double n : v) {
      squares += n * n;
    }
    return 1 / std::sqrt(squares / static_cast<double>(v.size()) + least);
  };
  double worst = y[rows * WIDTH].bits == 0x7fc1 ? 0 : 1e9;
  for (int row = 0; row < rows; row++) {
    auto of = [&](const std::vector<number> &v, int i) { return static_cast<double>(v[static_cast<size_t>(row * WIDTH + i)]); };
    auto summand = [&](int kind, const std::vector<number> &first, const std::vector<number> &second, double least) {
      std::vector<double> out;
      for (int i = 0; i < WIDTH; i++) {
        double combined = 0;
        for (int k = 0; k < K && kind > 2; k++) {
          combined += static_cast<double>(first[static_cast<size_t>((row * K + k) * WIDTH + i)]) * shares[row * K + k];
        }
        out.push_back(kind > 2 ? combined : of(first, i));
      }
      const double by_root = scale(out, least);
      for (int i = 0; i < WIDTH; i++) {
        out[static_cast<size_t>(i)] = kind == 0 || kind == 4 ? out[static_cast<size_t>(i)] : kind == 1 ? out[static_cast<size_t>(i)] * by_root * second[static_cast<size_t>(i)] : out[static_cast<size_t>(i)] + of(second, i);
      }
      return out;
    };
    auto all = summand(A, a0, a1, a_eps);
    const auto other = summand(B, b0, b1, b_eps);
    for (size_t i = 0; i < WIDTH; i++) {
      all[i] = (all[i] + other[i]) * (SCALED ? static_cast<double>(by[0]) : 1);
    }
    const double by_root = scale(all, eps);
    for (int i = 0; i < WIDTH; i++) {
      const double want = all[static_cast<size_t>(i)], normed = want * by_root * weight[static_cast<size_t>(i)];
      worst = worse(worse(worst, std::fabs(of(sum, i) - want) / (1 + std::fabs(want))), std::fabs(of(y, i) - normed) / (1 + std::fabs(normed)));
    }
  }
  return worst;
}

} // namespace

int main() {
  std::printf("%.6f\n%.6f\n%.6f\n", error<64, 0, 0, false>(), error<2048, 0, 1, false>(), error<2816, 1, 1, true>());
  std::printf("%.6f\n%.6f\n%.6f\n", error<4168, 0, 2, false>(), error<8192, 2, 0, true>(), error<264, 2, 1, true>());
  std::printf("%.6f\n%.6f\n", error<264, 0, 3, false>(), error<2048, 4, 1, true>());
  std::printf("%.6f\n%.6f\n", error_of_cut<768>(1344), error_of_cut<4168>(4176));
}
