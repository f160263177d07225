// Runs the CUDA kernel of attend_step.h on a processor and compares it with plain
// float64, rounded where the kernel rounds. numbers.inc and kernel.inc are its text. Prints
// the largest error, as a part of the root of the sum of squares that a result is made of,
// or of what a new key or value is rounded to, for each case.

#include "cuda.h"

#include <random>

inline unsigned short __bfloat16_as_ushort(bfloat16 v) { return v; }
inline unsigned __float_as_uint(float v) {
  unsigned out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline void __syncwarp() { wait(place::warp); }

namespace {

#include "numbers.inc"

struct number { // bfloat16, which converts
  bfloat16 bits = 0x7fc1;
  operator float() const { return wide(bits); }
};

// Heads in parts: VALUE is one of values, and of the first part of latent keys.
struct shape {
  int size, value, kv_heads, q_split, k_split, normed, turned, turn;
  bool neighbours, periods, is_new;
};

using strides = const int64_t *;

template <shape OF>
void kernel(const number *q0, strides q0_strides, const number *q1, strides q1_strides, const number *k0, strides k0_strides, const number *k1, strides k1_strides, const number *v, strides v_strides, const number *q_weight,
            const number *k_weight, const number *v_weight, const int *positions, const float *periods, const int *list, const number *keys, const number *values, bfloat16 *y) {
  constexpr int SIZE = OF.size, VALUE = OF.value, Q_SPLIT = OF.q_split, K_SPLIT = OF.k_split, NORMED = OF.normed, TURNED = OF.turned, TURN = OF.turn;
  constexpr bool APART = OF.kv_heads > 0, NEIGHBOURS = OF.neighbours, PERIODS = OF.periods;
  const int Q_EPS = (int)__float_as_uint(0.5f), K_EPS = (int)__float_as_uint(0.25f), V_EPS = (int)__float_as_uint(0.125f), BASE = (int)__float_as_uint(std::log2(10000.0f)), STEP = (int)__float_as_uint(0.5f);
#include "kernel.inc"
}

double rounded(double v) { return wide(__float2bfloat16(static_cast<float>(v))); }

// Rows of heads, of which parts are columns of one matrix with others between them.
struct heads_of {
  std::vector<number> all, weight;
  int64_t strides[2][3];
  int heads, size, split, rows;

  heads_of(int rows, int heads, int size, int split, std::mt19937 &random) : heads(heads), size(size), split(split), rows(rows) {
    auto some = [&](size_t n) {
      std::vector<number> out(n);
      for (auto &v : out) {
        v.bits = __float2bfloat16(std::uniform_real_distribution<float>(-1, 1)(random));
      }
      return out;
    };
    all = some(static_cast<size_t>(rows * heads * (size + 24)));
    weight = some(static_cast<size_t>(split));
    for (auto &s : strides) {
      s[0] = heads * (size + 24), s[1] = size + 24, s[2] = 1;
    }
  }
  const number *part(int i) const { return all.data() + (i == 0 ? 0 : split + 24); }

  // A head of a row as it should be.
  std::vector<double> made(int row, int head, bool normed, double eps, int turned, const shape &of, int position, const std::vector<float> &periods) const {
    std::vector<double> out;
    double squares = 0;
    for (int i = 0; i < size; i++) {
      const double v = part(i < split ? 0 : 1)[row * strides[0][0] + head * strides[0][1] + (i < split ? i : i - split)];
      out.push_back(v);
      squares += i < split ? v * v : 0;
    }
    for (int i = 0; normed && i < split; i++) {
      auto &v = out[static_cast<size_t>(i)];
      v = rounded(rounded(v / std::sqrt(squares / split + eps)) * weight[static_cast<size_t>(i)]);
    }
    for (int p = 0; p < of.turn; p++) { // by parts of pairs
      const int pair = p % (of.turn / 2), from = p < of.turn / 2 ? 0 : split;
      if ((turned & (from == 0 ? 1 : 2)) == 0) {
        continue;
      }
      auto &x = out[static_cast<size_t>(from + (of.neighbours ? 2 * pair : pair))], &z = out[static_cast<size_t>(from + (of.neighbours ? 2 * pair + 1 : pair + of.turn / 2))];
      const double angle = 0.5 * position * (of.periods ? 1 / periods[static_cast<size_t>(pair)] : std::pow(10000.0, -2.0 * pair / of.turn)), c = std::cos(angle), s = std::sin(angle), was = x;
      x = rounded(was * c - z * s);
      z = rounded(was * s + z * c);
    }
    return out;
  }
};

// A step of tokens that see as many as given, from the third on where values are apart,
// each in the slot of its number, at the end of q first.
template <shape OF> struct step {
  static constexpr bool APART = OF.kv_heads > 0;
  static constexpr int heads = 4, kv_heads = APART ? OF.kv_heads : 1, skipped = APART ? 2 : 0;
  std::vector<int> seen, list, positions;
  int n, capacity;
  std::mt19937 random;
  heads_of q, k, v;
  std::vector<number> keys, values, want_keys, want_values;
  std::vector<float> periods;
  const float scale = 1 / std::sqrt(static_cast<float>(OF.size));

  explicit step(const std::vector<int> &seen)
      : seen(seen), n(static_cast<int>(seen.size())), capacity(*std::max_element(seen.begin(), seen.end()) + skipped + 2), random(static_cast<unsigned>(capacity)), q(n, heads, OF.size, OF.q_split, random),
        k(n, kv_heads, OF.size, OF.k_split, random), v(n, kv_heads, OF.value, OF.value, random), keys(static_cast<size_t>(n * kv_heads * capacity * OF.size)), values(static_cast<size_t>(n * kv_heads * capacity * OF.value)) {
    const float powers = scale * 1.44269504f;
    list = {heads, kv_heads, (int)__float_as_uint(powers), OF.is_new};
    for (int i = 0; i < OF.turn / 2; i++) {
      periods.push_back(i % 3 == 2 ? INFINITY : 1.5f * static_cast<float>(i + 1));
    }
    for (int i = 0; i < n; i++) {
      positions.push_back(7 * i + 3);
      list.insert(list.end(), {n - 1 - i, i, skipped, seen[static_cast<size_t>(i)], capacity});
      for (int at = i * kv_heads; at < (i + 1) * kv_heads; at++) {
        auto some = [&](std::vector<number> &to, int size) {
          std::generate_n(to.begin() + (at * capacity + skipped) * size, (seen[static_cast<size_t>(i)] - OF.is_new) * size, [&] { return number{__float2bfloat16(std::uniform_real_distribution<float>(-1, 1)(random))}; });
        };
        some(keys, OF.size), some(values, OF.value);
      }
    }
    want_keys = keys, want_values = values;
    for (int i = 0; OF.is_new && i < n; i++) {
      for (int head = 0; head < kv_heads; head++) {
        want_new(n - 1 - i, head, first(i, head) + seen[static_cast<size_t>(i)] - 1);
      }
    }
  }

  int first(int slot, int kv_head) const { return (slot * kv_heads + kv_head) * capacity + skipped; }

  void want_new(int row, int head, int at) {
    auto put = [&](std::vector<number> &to, const std::vector<double> &from) {
      for (size_t d = 0; d < from.size(); d++) {
        to[static_cast<size_t>(at) * from.size() + d].bits = __float2bfloat16(static_cast<float>(from[d]));
      }
    };
    put(want_keys, k.made(row, head, OF.normed & 2, 0.25, OF.turned >> 2, OF, positions[static_cast<size_t>(row)], periods));
    if (APART) {
      put(want_values, v.made(row, head, OF.normed & 4, 0.125, 0, OF, 0, periods));
    }
  }

  void run(int head, int token, std::vector<bfloat16> &y) {
    run_block(head, token, 512, [&] {
      kernel<OF>(q.part(0), q.strides[0], q.part(1), q.strides[1], k.part(0), k.strides[0], k.part(1), k.strides[1], v.part(0), v.strides[0], q.weight.data(), k.weight.data(), v.weight.data(), positions.data(), periods.data(), list.data(), keys.data(),
                 APART ? values.data() : keys.data(), y.data());
    });
  }

  // The largest error of what a head of a token attends to.
  double error(int head, int token, const bfloat16 *got) const {
    const int from = first(token, head / (heads / kv_heads)), row = n - 1 - token;
    const auto asks = q.made(row, head, OF.normed & 1, 0.5, OF.turned & 3, OF, positions[static_cast<size_t>(row)], periods);
    std::vector<double> shares;
    double sum = 0, worst = 0;
    for (int at = from; at < from + seen[static_cast<size_t>(token)]; at++) {
      double dot = 0;
      for (int d = 0; d < OF.size; d++) {
        dot += asks[static_cast<size_t>(d)] * want_keys[static_cast<size_t>(at * OF.size + d)];
      }
      shares.push_back(std::exp(dot * scale));
      sum += shares.back();
    }
    for (int d = 0; d < OF.value; d++) {
      double want = 0, squares = 0;
      for (size_t i = 0; i < shares.size(); i++) {
        const size_t at = static_cast<size_t>(from) + i;
        const double part = shares[i] / sum * (APART ? want_values[at * OF.value + static_cast<size_t>(d)] : want_keys[at * OF.size + static_cast<size_t>(d)]);
        want += part;
        squares += part * part;
      }
      worst = worse(worst, std::fabs(wide(got[d]) - want) / std::sqrt(squares));
    }
    return worst;
  }
};

template <shape OF> double error(const std::vector<int> &seen) {
  step<OF> s(seen);
  std::vector<bfloat16> y(static_cast<size_t>(s.n * s.heads * OF.value + 8), 0x7fc1);
  double worst = 0;
  for (int token = 0; token < s.n; token++) {
    for (int head = 0; head < s.heads; head++) {
      s.run(head, token, y);
      worst = worse(worst, s.error(head, token, y.data() + (token * s.heads + head) * OF.value));
    }
  }
  auto compare = [&](const std::vector<number> &got, const std::vector<number> &want) {
    for (size_t i = 0; i < got.size(); i++) {
      if (got[i].bits != want[i].bits) { // what was not written is no number
        worst = worse(worst, std::fabs(got[i] - want[i]) / std::fabs(want[i]));
      }
    }
  };
  compare(s.keys, s.want_keys), compare(s.values, s.want_values);
  return std::any_of(y.end() - 8, y.end(), [](bfloat16 v) { return v != 0x7fc1; }) ? 1 : worst;
}

// Heads in one part that are plain and stored.
constexpr shape plain(int size, int value, int kv_heads) { return {size, value, kv_heads, size, size, 0, 0, 0, false, false, false}; }

} // namespace

int main() {
  std::printf("%.6f\n%.6f\n%.6f\n%.6f\n", error<plain(576, 512, 0)>({1}), error<plain(576, 512, 0)>({15, 16, 17, 200}), error<plain(192, 128, 0)>({33, 2}), error<plain(128, 64, 0)>({400}));
  std::printf("%.6f\n%.6f\n%.6f\n", error<plain(256, 256, 2)>({1, 40, 17}), error<plain(512, 512, 1)>({65}), error<plain(192, 128, 4)>({16, 130}));
  // New keys: latent ones in two parts; heads with norms; and with frequencies of their own.
  std::printf("%.6f\n%.6f\n", error<shape{576, 512, 0, 512, 512, 2, 10, 64, true, false, true}>({1, 17, 50}), error<shape{192, 128, 0, 128, 192, 1, 2, 32, false, false, true}>({16, 33}));
  std::printf("%.6f\n%.6f\n", error<shape{256, 256, 2, 256, 256, 7, 5, 256, false, false, true}>({1, 16, 40}), error<shape{512, 512, 1, 512, 512, 7, 5, 128, false, true, true}>({18}));
}
