// Runs the CUDA kernel of recur_step.h on a processor and compares it with plain
// float64. kernel.inc is its text. Prints the largest error of what is read, and of what
// becomes of rows and states, for each rule.

#include "cuda.h"

#include <random>

inline float rsqrtf(float v) { return 1 / std::sqrt(v); }

namespace {

using numbers = std::vector<float>;

constexpr int KEY_HEADS = 2, KEY_SIZE = 64, VALUE_HEADS = 4, VALUE_SIZE = 32, TAPS = 4, n = 2;
constexpr int width = KEY_HEADS * KEY_SIZE, channels = 2 * width + VALUE_HEADS * VALUE_SIZE, stride = channels + 7; // rows are parts of wider ones

struct operands {
  std::mt19937 random{1};
  numbers in = some(n * stride, 2), decay = some(n * VALUE_HEADS, 1), beta = some(n * VALUE_HEADS, 1), kernel = some(channels * TAPS, 0.6f), shift = some(channels, 0.3f), rate = some(VALUE_HEADS, 1);
  numbers bias = some(VALUE_HEADS, 1), skip = some(VALUE_HEADS, 1), seen = some(n * (TAPS - 1) * channels, 1), state = some(n * VALUE_HEADS * KEY_SIZE * VALUE_SIZE, 0.5f);
  numbers y = numbers(n * VALUE_HEADS * VALUE_SIZE, NAN), after = numbers(seen.size(), NAN), next = numbers(state.size(), NAN);

  numbers some(int count, float scale) {
    numbers out(static_cast<size_t>(count));
    std::generate(out.begin(), out.end(), [&] { return std::uniform_real_distribution<float>(-scale, scale)(random); });
    return out;
  }
};

template <bool SPACE, bool SHIFTED>
void step(const float *q, const float *k, const float *v, const float *decay, const float *beta, const float *kernel, const float *shift, const float *rate, const float *bias, const float *skip, const float *seen, const float *state,
          float *y, float *after, float *next) {
  const long q_strides[] = {stride, 1}, k_strides[] = {stride, 1}, v_strides[] = {stride, 1}, decay_strides[] = {VALUE_HEADS, 1}, beta_strides[] = {VALUE_HEADS, 1};
  const int LOW = 0x3a83126f, HIGH = 0x3f000000; // 0.001 and 0.5
#include "kernel.inc"
}

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

template <bool SPACE> double error_of_head(const operands &o, const std::vector<double> &mixed, int row, int head) {
  const int from = head / (VALUE_HEADS / KEY_HEADS) * KEY_SIZE;
  std::vector<double> q(mixed.begin() + from, mixed.begin() + from + KEY_SIZE), k(mixed.begin() + width + from, mixed.begin() + width + from + KEY_SIZE);
  auto unit = [](std::vector<double> &v, double size) {
    double squares = 0;
    for (auto x : v) {
      squares += x * x;
    }
    for (auto &x : v) {
      x *= size / std::sqrt(squares + 1e-6);
    }
  };
  if (!SPACE) {
    unit(q, 1 / std::sqrt(KEY_SIZE));
    unit(k, 1);
  }
  const auto gate = static_cast<size_t>(row * VALUE_HEADS + head);
  const double soft = std::log1p(std::exp(o.decay[gate] + static_cast<double>(o.bias[static_cast<size_t>(head)]))), bound = std::clamp(soft, 0.001, 0.5);
  const double stays = std::exp(-std::exp(o.rate[static_cast<size_t>(head)]) * (SPACE ? bound : soft)), takes = SPACE ? bound : sigmoid(o.beta[gate]);
  double worst = 0;
  for (int j = 0; j < VALUE_SIZE; j++) {
    auto at = [&](int i) { return (gate * KEY_SIZE + static_cast<size_t>(i)) * VALUE_SIZE + static_cast<size_t>(j); };
    const double value = mixed[static_cast<size_t>(2 * width + head * VALUE_SIZE + j)];
    double said = 0, read = SPACE ? o.skip[static_cast<size_t>(head)] * value : 0;
    for (int i = 0; i < KEY_SIZE; i++) {
      said += k[static_cast<size_t>(i)] * o.state[at(i)];
    }
    const double news = SPACE ? value * takes : (value - said * stays) * takes;
    for (int i = 0; i < KEY_SIZE; i++) {
      const double want = o.state[at(i)] * stays + k[static_cast<size_t>(i)] * news;
      read += q[static_cast<size_t>(i)] * want;
      worst = worse(worst, std::fabs(o.next[at(i)] - want));
    }
    worst = worse(worst, std::fabs(o.y[gate * VALUE_SIZE + static_cast<size_t>(j)] - read));
  }
  return worst;
}

template <bool SPACE, bool SHIFTED> double error() {
  operands o;
  for (int row = 0; row < n; row++) {
    for (int head = 0; head < VALUE_HEADS; head++) {
      run_block(head, row, VALUE_SIZE * 4, [&] {
        step<SPACE, SHIFTED>(o.in.data(), o.in.data() + width, o.in.data() + 2 * width, o.decay.data(), o.beta.data(), o.kernel.data(), o.shift.data(), o.rate.data(), o.bias.data(), o.skip.data(), o.seen.data(),
                             o.state.data(), o.y.data(), o.after.data(), o.next.data());
      });
    }
  }
  double worst = 0;
  for (int row = 0; row < n; row++) {
    std::vector<double> mixed;
    for (int c = 0; c < channels; c++) {
      double sum = SHIFTED ? o.shift[static_cast<size_t>(c)] : 0;
      auto before = [&](const numbers &of, int j) { return of[static_cast<size_t>((row * (TAPS - 1) + j) * channels + c)]; };
      for (int j = 0; j < TAPS; j++) {
        const double x = j + 1 < TAPS ? before(o.seen, j) : o.in[static_cast<size_t>(row * stride + c)];
        sum += x * o.kernel[static_cast<size_t>(c * TAPS + j)];
        worst = j > 0 ? worse(worst, std::fabs(before(o.after, j - 1) - x)) : worst;
      }
      mixed.push_back(sum * sigmoid(sum));
    }
    for (int head = 0; head < VALUE_HEADS; head++) {
      worst = worse(worst, error_of_head<SPACE>(o, mixed, row, head));
    }
  }
  return worst;
}

} // namespace

int main() { std::printf("%.9f\n%.9f\n%.9f\n%.9f\n", error<false, false>(), error<false, true>(), error<true, false>(), error<true, true>()); }
