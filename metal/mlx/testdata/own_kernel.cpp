// Calls an own_kernel whose maker counts, and prints how often it was asked to make an operation; then what
// compact leaves of a text.
#include "bridge_kernel.h"

#include <cstdio>

#include "mlx/ops.h"
#include "mlx/stream.h"

namespace mx = mlx::core;

struct nothing : mx::Primitive {
  using mx::Primitive::Primitive;
  void eval_cpu(const std::vector<mx::array> &, std::vector<mx::array> &) override {}
  void eval_gpu(const std::vector<mx::array> &, std::vector<mx::array> &) override {}
  const char *name() const override { return "nothing"; }
};

int main() {
  int made = 0;
  bridge::own_kernel kernel([&](const std::vector<mx::array> &in, const std::vector<mx::Shape> &shapes, const std::vector<mx::Dtype> &types, auto...) {
    made++;
    return mx::array::make_arrays(shapes, types, std::make_shared<nothing>(mx::default_stream(mx::Device::cpu)), in);
  });
  auto numbers = [](int n) { return mx::zeros({n}, mx::float32); };
  auto call = [&](const mx::array &x, int out, mx::Dtype type, int grid, int block, int constant, bool flag) {
    return kernel({x}, {mx::Shape{out}}, {type}, {grid, 1, 1}, {block, 1, 1}, {{"N", constant}, {"FLAG", flag}})[0];
  };
  auto x = numbers(4), y = numbers(6);
  auto first = call(x, 4, mx::float32, 8, 4, 1, false), second = call(y, 6, mx::float32, 8, 4, 1, false);
  bool apart = first.id() != second.id() && second.shape(0) == 6 && second.inputs()[0].id() == y.id() && first.inputs()[0].id() == x.id();
  std::printf("others %d %d\n", made, apart);
  call(x, 4, mx::float32, 16, 4, 1, false);
  std::printf("grid %d\n", made);
  call(x, 4, mx::float32, 8, 8, 1, false);
  std::printf("block %d\n", made);
  call(x, 4, mx::float32, 8, 4, 2, false);
  std::printf("constant %d\n", made);
  call(x, 4, mx::float32, 8, 4, 1, true);
  std::printf("flag %d\n", made);
  call(x, 4, mx::bfloat16, 8, 4, 1, false);
  std::printf("result %d\n", made);
  call(mx::astype(x, mx::bfloat16), 4, mx::float32, 8, 4, 1, false);
  std::printf("operand %d\n", made);
  call(mx::array(1.0f), 4, mx::float32, 8, 4, 1, false);
  std::printf("scalar %d\n", made);
  call(x, 4, mx::float32, 8, 4, 1, false);
  std::printf("again %d\n", made);
  for (int grid = 100; grid < 200; grid++) {
    call(x, 4, mx::float32, grid, 4, 1, false);
  }
  call(x, 4, mx::float32, 8, 4, 1, false);
  std::printf("forgotten %d\n", made);
  std::string text = bridge::compact("\n  int a; // one\n\n// two\n#pragma unroll\n    b();\n  c");
  std::replace(text.begin(), text.end(), '\n', '|');
  std::printf("text %s\n", text.c_str());
}
