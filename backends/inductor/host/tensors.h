// What the operators of this folder share: tensors as compiled code hands them over, and rows of numbers as floats.
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/Unroll.h>
#include <omp.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

using Vec = at::vec::Vectorized<float>;
constexpr int64_t WIDTH = Vec::size();

inline void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

inline void check(AOTITorchError error) {
  require(error == AOTI_TORCH_SUCCESS, "an operator of a host failed");
}

// Floats of no value.
struct Scratch : std::unique_ptr<float[]> {
  explicit Scratch(int64_t count) : std::unique_ptr<float[]>(new float[count]) {}
};

// A tensor of one to four dimensions.
struct View {
  char* data = nullptr;
  int32_t dtype = 0;
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;

  explicit View(AtenTensorHandle tensor) {
    void* begin = nullptr;
    check(aoti_torch_get_data_ptr(tensor, &begin));
    check(aoti_torch_get_dtype(tensor, &dtype));
    check(aoti_torch_get_dim(tensor, &dims));
    check(aoti_torch_get_sizes(tensor, &sizes));
    check(aoti_torch_get_strides(tensor, &strides));
    data = static_cast<char*>(begin);
  }

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

inline AtenTensorHandle empty(const std::vector<int64_t>& sizes, int32_t dtype) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t place = sizes.size() - 1; place > 0; --place) strides[place - 1] = strides[place] * sizes[place];
  AtenTensorHandle made = nullptr;
  check(aoti_torch_empty_strided(
      sizes.size(), sizes.data(), strides.data(), dtype, aoti_torch_device_type_cpu(), 0, &made));
  return made;
}

// Floats that lie somewhere, as a matrix of torch.
struct Matrix {
  AtenTensorHandle handle = nullptr;

  Matrix(const float* data, int64_t rows, int64_t columns, int64_t row, int64_t column) {
    const int64_t sizes[] = {rows, columns}, strides[] = {row, column};
    check(aoti_torch_create_tensor_from_blob(
        const_cast<float*>(data), 2, sizes, strides, 0, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0,
        &handle));
  }
  Matrix(const Matrix&) = delete;
  ~Matrix() { aoti_torch_delete_tensor_object(handle); }
};

inline void multiply(const Matrix& out, const Matrix& left, const Matrix& right) {
  check(aoti_torch_cpu_mm_out(out.handle, left.handle, right.handle));
}

inline void add_product(const Matrix& out, const Matrix& left, const Matrix& right) {
  check(aoti_torch_cpu_addmm_out(out.handle, out.handle, left.handle, right.handle, 1, 1));
}

// As many numbers as a register holds, or the `count` that are left, the rest zeros.
template <typename T>
inline Vec load(const T* from, int64_t count = WIDTH) {
  Vec wide(0.f);
  if (count >= WIDTH) {
    at::vec::load_to_float<T>(from, wide);
    return wide;
  }
  alignas(64) float held[WIDTH] = {};
  for (int64_t place = 0; place < count; ++place) held[place] = static_cast<float>(from[place]);
  return Vec::loadu(held);
}

template <>
inline Vec load<float>(const float* from, int64_t count) {
  return count >= WIDTH ? Vec::loadu(from) : Vec::loadu(from, count);
}

template <typename T>
inline void widen(const T* from, float* to, int64_t count) {
  for (int64_t place = 0; place < count; place += WIDTH)
    load(from + place, count - place).store(to + place, std::min(WIDTH, count - place));
}

template <typename T>
inline void narrow(const float* from, T* to, int64_t count) {
  for (int64_t place = 0; place < count; ++place) to[place] = static_cast<T>(from[place]);
}

template <typename T>
inline void store_two(const Vec& one, const Vec& other, T* to) {
  at::vec::convert_from_float<T>(one, other).store(to);
}
template <>
inline void store_two<float>(const Vec& one, const Vec& other, float* to) {
  one.store(to);
  other.store(to + WIDTH);
}

template <typename T>
inline void store_row(const float* from, T* to, int64_t count) {
  int64_t place = 0;
  for (; place + 2 * WIDTH <= count; place += 2 * WIDTH)
    store_two<T>(Vec::loadu(from + place), Vec::loadu(from + place + WIDTH), to + place);
  narrow(from + place, to + place, count - place);
}

inline float sum(const Vec& x) {
  return at::vec::vec_reduce_all<float>([](const Vec& one, const Vec& other) { return one + other; }, x);
}

// The numbers of a tensor in order, copied to `held` where they do not lie so.
template <typename T>
inline const T* in_order(const View& given, std::vector<T>& held) {
  int64_t count = 1;
  bool ordered = true;
  for (int64_t place = given.dims - 1; place >= 0; --place) {
    ordered = ordered && (given.sizes[place] == 1 || given.strides[place] == count);
    count *= given.sizes[place];
  }
  if (ordered) return given.as<T>();
  held.resize(count);
  for (int64_t number = 0; number < count; ++number) {
    int64_t from = 0;
    for (int64_t place = given.dims - 1, left = number; place >= 0; left /= given.sizes[place--])
      from += left % given.sizes[place] * given.strides[place];
    held[number] = given.as<T>()[from];
  }
  return held.data();
}

// How many threads what is parallel has.
inline int64_t threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace headrace
