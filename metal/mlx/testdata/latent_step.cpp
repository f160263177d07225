// Runs the CUDA kernel of latent_step.h on a processor and compares it with plain
// float64. kernel.inc is its text. Prints the largest error, as a part of the root of the
// sum of squares that a result is made of, for each case.

#include "cuda.h"

#include <random>

namespace {

template <int SIZE, int VALUE> void kernel(const bfloat16 *q, const int *list, const bfloat16 *keys, bfloat16 *y) {
#include "kernel.inc"
}

constexpr bfloat16 poison = 0x7fc1;

// Tokens that see as many as given, each in the slot of its number, at the end of q first.
template <int SIZE, int VALUE> double error(const std::vector<int> &seen) {
  const int heads = 3, n = static_cast<int>(seen.size()), capacity = *std::max_element(seen.begin(), seen.end()) + 2;
  std::mt19937 random(static_cast<unsigned>(capacity));
  auto number = [&](float scale) { return __float2bfloat16(std::uniform_real_distribution<float>(-scale, scale)(random)); };
  std::vector<bfloat16> q(static_cast<size_t>(n * heads * SIZE)), keys(static_cast<size_t>(n * capacity * SIZE), poison), y(static_cast<size_t>(n * heads * VALUE + 8), poison);
  std::generate(q.begin(), q.end(), [&] { return number(2); });
  const float scale = 1 / std::sqrt(static_cast<float>(SIZE)), powers = scale * 1.44269504f;
  std::vector<int> list{heads, 0};
  std::memcpy(&list[1], &powers, sizeof powers);
  for (int i = 0; i < n; i++) {
    list.insert(list.end(), {n - 1 - i, i, seen[static_cast<size_t>(i)], capacity});
    std::generate_n(keys.begin() + i * capacity * SIZE, seen[static_cast<size_t>(i)] * SIZE, [&] { return number(1); });
  }
  double worst = 0;
  for (int i = 0; i < n; i++) {
    for (int head = 0; head < heads; head++) {
      run_block(head, i, 512, [&] { kernel<SIZE, VALUE>(q.data(), list.data(), keys.data(), y.data()); });
      std::vector<double> shares;
      double sum = 0;
      for (int token = 0; token < seen[static_cast<size_t>(i)]; token++) {
        double dot = 0;
        for (int d = 0; d < SIZE; d++) {
          dot += static_cast<double>(wide(q[static_cast<size_t>(((n - 1 - i) * heads + head) * SIZE + d)])) * wide(keys[static_cast<size_t>((i * capacity + token) * SIZE + d)]);
        }
        shares.push_back(std::exp(dot * scale));
        sum += shares.back();
      }
      for (int d = 0; d < VALUE; d++) {
        double want = 0, squares = 0;
        for (size_t token = 0; token < shares.size(); token++) {
          const double part = shares[token] / sum * wide(keys[(static_cast<size_t>(i * capacity) + token) * SIZE + static_cast<size_t>(d)]);
          want += part;
          squares += part * part;
        }
        worst = worse(worst, std::fabs(wide(y[static_cast<size_t>((i * heads + head) * VALUE + d)]) - want) / std::sqrt(squares));
      }
    }
  }
  return std::any_of(y.end() - 8, y.end(), [](bfloat16 v) { return v != poison; }) ? 1 : worst;
}

} // namespace

int main() {
  std::printf("%.6f\n%.6f\n%.6f\n%.6f\n", error<576, 512>({1}), error<576, 512>({15, 16, 17, 200}), error<192, 128>({33, 2}), error<128, 64>({400}));
}
