// Runs the CUDA kernels experts_route, by scores and by a router, and experts_combine of
// experts.h on a processor and compares them with plain float64. numbers.inc, kernel.inc,
// scored.inc, score.inc and combine.inc are their text. Prints the largest error for each case; 1e9 where others are chosen.

#include "cuda.h"

#include <numeric>
#include <random>

inline unsigned short __bfloat16_as_ushort(bfloat16 v) { return v; }

namespace {

#include "numbers.inc"

template <int EXPERTS, int K, bool SIGMOID, bool BIASED, bool NORMALIZED, bool EACH>
void route(const float *scores, const int *scores_shape, const float *bias, const float *each, int *ids, float *shares) {
  constexpr bool ROUNDED = false;
  const int LEAST = 0x3a83126f, SCALE = 0x40200000; // 0.001 and 2.5
#include "scored.inc"
#include "kernel.inc"
}

template <int EXPERTS, int K> void score(const bfloat16 *x, const int *x_shape, const bfloat16 *router, const float *bias, const float *each, int *ids, float *shares) {
  constexpr bool SIGMOID = true, BIASED = true, NORMALIZED = true, EACH = false, ROUNDED = false;
  const int LEAST = 0x3a83126f, SCALE = 0x40200000;
#include "score.inc"
#include "kernel.inc"
}

template <int K, bool ROUNDED> void combine(const bfloat16 *y, const int *y_shape, const float *shares, const int *shares_shape, bfloat16 *out) {
#include "combine.inc"
}

std::vector<float> some(std::mt19937 &random, int n, float scale) {
  std::vector<float> out(static_cast<size_t>(n));
  std::generate(out.begin(), out.end(), [&] { return std::uniform_real_distribution<float>(-scale, scale)(random); });
  return out;
}

template <int EXPERTS, int K, bool SIGMOID, bool BIASED, bool NORMALIZED, bool EACH> double error_of_route() {
  constexpr int rows = 6; // a block and a half
  std::mt19937 random(EXPERTS);
  const auto scores = some(random, rows * EXPERTS, 3), bias = some(random, EXPERTS, 1), each = some(random, EXPERTS, 2);
  std::vector<int> ids(rows * K + 4, -1);
  std::vector<float> shares(rows * K + 4, NAN);
  const int scores_shape[] = {rows, EXPERTS};
  for (int b = 0; b < 2; b++) {
    run_block(b, 0, 128, [&] { route<EXPERTS, K, SIGMOID, BIASED, NORMALIZED, EACH>(scores.data(), scores_shape, bias.data(), each.data(), ids.data(), shares.data()); });
  }
  double worst = ids[rows * K] == -1 && std::isnan(shares[rows * K]) ? 0 : 1e9;
  for (int row = 0; row < rows; row++) {
    std::vector<double> weight, wanted;
    for (int e = 0; e < EXPERTS; e++) {
      const double score = scores[static_cast<size_t>(row * EXPERTS + e)];
      weight.push_back(SIGMOID ? 1 / (1 + std::exp(-score)) : std::exp(score));
    }
    const double all = SIGMOID ? 1 : std::accumulate(weight.begin(), weight.end(), 0.0);
    std::vector<int> order(EXPERTS);
    std::iota(order.begin(), order.end(), 0);
    for (int e = 0; e < EXPERTS; e++) {
      weight[static_cast<size_t>(e)] /= all;
      wanted.push_back(weight[static_cast<size_t>(e)] + (BIASED ? bias[static_cast<size_t>(e)] : 0));
    }
    std::sort(order.begin(), order.end(), [&](int a, int b) { return wanted[static_cast<size_t>(a)] > wanted[static_cast<size_t>(b)]; });
    double sum = 0.001;
    for (int k = 0; k < K; k++) {
      sum += weight[static_cast<size_t>(order[static_cast<size_t>(k)])];
    }
    for (int k = 0; k < K; k++) {
      const auto e = static_cast<size_t>(order[static_cast<size_t>(k)]), at = static_cast<size_t>(row * K + k);
      const double want = weight[e] / (NORMALIZED ? sum : 1) * (EACH ? each[e] : 1) * 2.5;
      worst = static_cast<size_t>(ids[at]) == e ? worse(worst, std::fabs(shares[at] - want)) : 1e9;
    }
  }
  return worst;
}

// How far what a router's scores choose is from what the same scores choose by themselves.
template <int EXPERTS, int K> double error_of_score(int in) {
  constexpr int rows = 3;
  std::mt19937 random(EXPERTS + in);
  auto narrow = [&](int n) {
    std::vector<bfloat16> out;
    for (float v : some(random, n, 1)) {
      out.push_back(__float2bfloat16(v));
    }
    return out;
  };
  const auto x = narrow(rows * in), router = narrow(EXPERTS * in);
  const auto bias = some(random, EXPERTS, 1);
  std::vector<float> scores, shares(rows * K), want(shares);
  std::vector<int> ids(rows * K, -1), chosen(ids);
  for (int row = 0; row < rows; row++) {
    for (int e = 0; e < EXPERTS; e++) {
      double dot = 0;
      for (int i = 0; i < in; i++) {
        dot += static_cast<double>(wide(x[static_cast<size_t>(row * in + i)])) * wide(router[static_cast<size_t>(e * in + i)]);
      }
      scores.push_back(wide(__float2bfloat16(static_cast<float>(dot))));
    }
  }
  const int x_shape[] = {rows, in}, scores_shape[] = {rows, EXPERTS};
  for (int row = 0; row < rows; row++) {
    run_block(row, 0, 1024, [&] { score<EXPERTS, K>(x.data(), x_shape, router.data(), bias.data(), nullptr, ids.data(), shares.data()); });
  }
  run_block(0, 0, 128, [&] { route<EXPERTS, K, true, true, true, false>(scores.data(), scores_shape, bias.data(), nullptr, chosen.data(), want.data()); });
  double worst = 0;
  for (size_t i = 0; i < ids.size(); i++) {
    worst = ids[i] == chosen[i] ? worse(worst, std::fabs(shares[i] - want[i])) : 1e9;
  }
  return worst;
}

template <int K, bool ROUNDED> double error_of_combine(int tokens, int width) {
  std::mt19937 random(7);
  std::vector<bfloat16> y(static_cast<size_t>(tokens * K * width)), out(static_cast<size_t>(tokens * width + 8), 0x7fff);
  std::generate(y.begin(), y.end(), [&] { return __float2bfloat16(std::uniform_real_distribution<float>(-1, 1)(random)); });
  const auto shares = some(random, tokens * K, 1);
  const int y_shape[] = {tokens * K, width}, shares_shape[] = {tokens, K};
  for (int b = 0; b < (tokens * (width / 8) + 127) / 128; b++) {
    run_block(b, 0, 128, [&] { combine<K, ROUNDED>(y.data(), y_shape, shares.data(), shares_shape, out.data()); });
  }
  double worst = out[static_cast<size_t>(tokens * width)] == 0x7fff ? 0 : 1e9;
  for (int t = 0; t < tokens; t++) {
    for (int c = 0; c < width; c++) {
      double want = 0;
      for (int k = 0; k < K; k++) {
        want += static_cast<double>(wide(y[static_cast<size_t>((t * K + k) * width + c)])) * shares[static_cast<size_t>(t * K + k)];
      }
      worst = worse(worst, std::fabs(wide(out[static_cast<size_t>(t * width + c)]) - want));
    }
  }
  return worst;
}

} // namespace

int main() {
  std::printf("%.9f\n%.9f\n%.9f\n%.9f\n%.9f\n", error_of_route<37, 3, false, false, true, false>(), error_of_route<64, 4, true, true, true, false>(), error_of_route<128, 8, false, false, true, true>(),
              error_of_route<256, 8, false, false, false, false>(), error_of_route<5, 5, true, true, false, true>());
  std::printf("%.6f\n%.6f\n", error_of_combine<8, false>(3, 704), error_of_combine<3, true>(9, 64));
  std::printf("%.6f\n%.6f\n", error_of_score<37, 4>(64), error_of_score<64, 8>(264));
}
