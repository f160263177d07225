//go:build mlx

// Kernels of ours, which the framework compiles when they are first used.
#ifndef METALFLEET_BRIDGE_KERNEL_H
#define METALFLEET_BRIDGE_KERNEL_H

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "mlx/array.h"
#include "mlx/fast.h"
#include "mlx/primitives.h"

namespace bridge {

namespace mx = mlx::core;

// What an operation that was not started yet makes a out of; nullptr unless it is the
// one of that name.
inline const std::vector<mx::array> *made_by(const mx::array &a, std::string_view name) {
  if (a.status() != mx::array::Status::unscheduled || !a.has_primitive() || a.primitive().name() != name) {
    return nullptr;
  }
  return &a.inputs();
}

// The first of the columns that were cut out of every row to make a, which was not
// started yet; -1 if a is anything else.
inline int first_column(const mx::array &a) {
  if (made_by(a, "Slice") == nullptr || a.ndim() != 2) {
    return -1;
  }
  auto [start, end, strides] = static_cast<const mx::Slice &>(a.primitive()).state();
  return start[0] == 0 && strides[0] == 1 && strides[1] == 1 && a.shape(0) == a.inputs()[0].shape(0) ? start[1] : -1;
}

// The text of a kernel without its comments and its indentation: at each call the
// framework reads the whole text once more, for a hash.
inline std::string compact(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size() - 1);
    auto line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    if (const auto comment = line.find("//"); comment != line.npos) {
      line = line.substr(0, comment);
    }
    const auto from = line.find_first_not_of(" \n");
    if (from == line.npos) {
      continue;
    }
    line = line.substr(from, line.find_last_not_of(" \n") + 1 - from);
    out.append(line).push_back('\n');
  }
  return out;
}

// A kernel of the framework's makers (mlx::fast::cuda_kernel). For every call they put
// its source together again, some five kilobytes, to give it to an operation. Calls
// that differ in nothing but the contents and sizes of their operands share one.
class own_kernel {
public:
  using size = std::tuple<int, int, int>;
  using constants = std::vector<std::pair<std::string, mx::fast::TemplateArg>>;

  explicit own_kernel(mx::fast::CustomKernelFunction make) : make(std::move(make)) {}

  // A CUDA kernel; unless operands are whole, its source takes them at any strides.
  own_kernel(const std::string &name, const std::vector<std::string> &in, const std::vector<std::string> &out, std::string_view source, std::string_view header = {}, bool whole = true)
      : own_kernel(mx::fast::cuda_kernel(name, in, out, compact(source), compact(header), whole)) {}

  // Results of the shapes and types, by grid threads in blocks.
  std::vector<mx::array> operator()(const std::vector<mx::array> &in, const std::vector<mx::Shape> &shapes, const std::vector<mx::Dtype> &types, size grid, size block, const constants &how = {}) {
    auto key = key_of(in, types, grid, block, how);
    if (auto found = made.find(key); found != made.end()) {
      return mx::array::make_arrays(shapes, types, found->second, in);
    }
    auto out = make(in, shapes, types, grid, block, how, std::nullopt, false, {});
    if (made.size() >= most) { // prompts of many lengths
      made.clear();
    }
    made.emplace(std::move(key), out[0].primitive_ptr());
    return out;
  }

  // What a call that was not started yet makes a out of; nullptr if a is made by anything
  // else.
  const std::vector<mx::array> *operands(const mx::array &a) const {
    const auto *in = made_by(a, "CustomKernel");
    auto own = [&](const auto &m) { return m.second.get() == &a.primitive(); };
    return in != nullptr && std::any_of(made.begin(), made.end(), own) ? in : nullptr;
  }

private:
  static constexpr size_t most = 64; // operations, each with its source

  // What the text of a kernel and its start depend on.
  static std::vector<int> key_of(const std::vector<mx::array> &in, const std::vector<mx::Dtype> &types, size grid, size block, const constants &how) {
    std::vector<int> key;
    key.reserve(2 * in.size() + types.size() + how.size() + 6);
    for (const auto &a : in) {
      key.insert(key.end(), {static_cast<int>(a.dtype().val()), a.ndim() > 0});
    }
    for (auto type : types) {
      key.push_back(static_cast<int>(type.val()));
    }
    for (auto [x, y, z] : {grid, block}) {
      key.insert(key.end(), {x, y, z});
    }
    for (const auto &[name, value] : how) {
      key.push_back(std::visit([](auto v) { return number(v); }, value));
    }
    return key;
  }

  static int number(int v) { return v; }
  static int number(bool v) { return v; }
  static int number(mx::Dtype v) { return static_cast<int>(v.val()); }

  mx::fast::CustomKernelFunction make;
  std::map<std::vector<int>, std::shared_ptr<mx::Primitive>> made;
};

} // namespace bridge

#endif
