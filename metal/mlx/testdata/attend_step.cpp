// Runs the CUDA kernel of attend_step.h on a processor and compares it with plain
// float64. kernel.inc is its text. Prints the largest error, as a part of the root of the
// sum of squares that a result is made of, for each case.

#include "cuda.h"

#include <random>

namespace {

template <int SIZE, int VALUE, bool APART> void kernel(const bfloat16 *q, const int *list, const bfloat16 *keys, const bfloat16 *values, bfloat16 *y) {
#include "kernel.inc"
}

constexpr bfloat16 poison = 0x7fc1;

// Tokens that see as many as given, from the third on where values are apart, each in
// the slot of its number, at the end of q first.
template <int SIZE, int VALUE, int KV_HEADS> double error(const std::vector<int> &seen) {
  constexpr bool APART = KV_HEADS > 0;
  const int heads = 4, kv_heads = APART ? KV_HEADS : 1, skipped = APART ? 2 : 0, n = static_cast<int>(seen.size());
  const int capacity = *std::max_element(seen.begin(), seen.end()) + skipped + 2;
  std::mt19937 random(static_cast<unsigned>(capacity));
  auto number = [&](float scale) { return __float2bfloat16(std::uniform_real_distribution<float>(-scale, scale)(random)); };
  auto room = [](int numbers) { return std::vector<bfloat16>(static_cast<size_t>(numbers), poison); };
  auto q = room(n * heads * SIZE), keys = room(n * kv_heads * capacity * SIZE), values = room(n * kv_heads * capacity * VALUE), y = room(n * heads * VALUE + 8);
  std::generate(q.begin(), q.end(), [&] { return number(2); });
  const float scale = 1 / std::sqrt(static_cast<float>(SIZE)), powers = scale * 1.44269504f;
  std::vector<int> list{heads, kv_heads, 0};
  std::memcpy(&list[2], &powers, sizeof powers);
  for (int i = 0; i < n; i++) {
    list.insert(list.end(), {n - 1 - i, i, skipped, seen[static_cast<size_t>(i)], capacity});
    for (int at = i * kv_heads; at < (i + 1) * kv_heads; at++) {
      std::generate_n(keys.begin() + (at * capacity + skipped) * SIZE, seen[static_cast<size_t>(i)] * SIZE, [&] { return number(1); });
      std::generate_n(values.begin() + (at * capacity + skipped) * VALUE, seen[static_cast<size_t>(i)] * VALUE, [&] { return number(1); });
    }
  }
  double worst = 0;
  for (int i = 0; i < n; i++) {
    for (int head = 0; head < heads; head++) {
      run_block(head, i, 512, [&] { kernel<SIZE, VALUE, APART>(q.data(), list.data(), keys.data(), APART ? values.data() : keys.data(), y.data()); });
      const int first = (i * kv_heads + head / (heads / kv_heads)) * capacity + skipped;
      std::vector<double> shares;
      double sum = 0;
      for (int token = 0; token < seen[static_cast<size_t>(i)]; token++) {
        double dot = 0;
        for (int d = 0; d < SIZE; d++) {
          dot += static_cast<double>(wide(q[static_cast<size_t>(((n - 1 - i) * heads + head) * SIZE + d)])) * wide(keys[static_cast<size_t>((first + token) * SIZE + d)]);
        }
        shares.push_back(std::exp(dot * scale));
        sum += shares.back();
      }
      for (int d = 0; d < VALUE; d++) {
        double want = 0, squares = 0;
        for (size_t token = 0; token < shares.size(); token++) {
          const size_t at = static_cast<size_t>(first) + token;
          const double part = shares[token] / sum * wide(APART ? values[at * VALUE + static_cast<size_t>(d)] : keys[at * SIZE + static_cast<size_t>(d)]);
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
  std::printf("%.6f\n%.6f\n%.6f\n%.6f\n", error<576, 512, 0>({1}), error<576, 512, 0>({15, 16, 17, 200}), error<192, 128, 0>({33, 2}), error<128, 64, 0>({400}));
  std::printf("%.6f\n%.6f\n%.6f\n", error<256, 256, 2>({1, 40, 17}), error<512, 512, 1>({65}), error<192, 128, 4>({16, 130}));
}
