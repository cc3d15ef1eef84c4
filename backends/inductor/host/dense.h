// Linear layers of many rows, and what follows each in the same pass while its numbers are in a core's cache: bias,
// activation, residual and norm. Products are those of torch's oneDNN for tiles: AVX2, AVX512, its bfloat16, or AMX.

namespace at::native::cpublas {
void brgemm(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const float*, const float*, float*, bool);
void brgemm(
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const c10::BFloat16*, const c10::BFloat16*, float*, bool);
void brgemm_release(bool);
}  // namespace at::native::cpublas

namespace headrace {

// Columns of a block of weights, rows of a tile. Products are of few heights: each is a kernel made when first needed.
constexpr int64_t COLUMNS = 64, ROWS = 64;
enum Activation : int64_t { NOTHING, GELU, GELU_TANH, RELU, SILU };

// A quotient of polynomials; off by 3e-7 at most.
inline Vec error_function(const Vec& x) {
  const Vec held = at::vec::minimum(at::vec::maximum(x, Vec(-4.f)), Vec(4.f)), square = held * held;
  auto polynomial = [&](auto... each) {
    Vec total(0.f);
    ((total = at::vec::fmadd(total, square, Vec(each))), ...);
    return total;
  };
  const Vec above = polynomial(
      -2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f, -5.69250639462346e-05f,
      -7.34990630326855e-04f, -2.95459980854025e-03f, -1.60960333262415e-02f);
  const Vec below = polynomial(
      -1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f, -7.37332916720468e-03f,
      -1.42647390514189e-02f);
  return held * above / below;
}

inline Vec activated(const Vec& x, int64_t kind) {
  const Vec one(1.f);
  switch (kind) {
    case GELU: return x * Vec(0.5f) * (one + error_function(x * Vec(0.70710678118654752f)));
    case GELU_TANH: return x / (one + (x * Vec(-1.5957691216057308f) * (one + Vec(0.044715f) * x * x)).exp());
    case RELU: return at::vec::maximum(x, Vec(0.f));
    case SILU: return x / (one + x.neg().exp());
    default: return x;
  }
}

// The numbers of a row [N] of parameters as floats, zeros where there is none.
template <typename T>
inline std::vector<float> parameters(AtenTensorHandle* given, int64_t count) {
  std::vector<float> wide(given ? count : 0);
  if (given) widen(View(*given).as<T>(), wide.data(), count);
  return wide;
}

template <typename T>
struct Dense {
  // So much of the sums at a time: a tile of both operands stays in the cache of a core.
  static constexpr int64_t DEEP = 4096 / sizeof(T);
  const T *x, *weight, *residual;
  T* out;
  std::vector<float> bias, scale, shift;
  int64_t rows, K, N, activation;
  bool normed;
  float eps;

  int64_t blocks() const { return (N + COLUMNS - 1) / COLUMNS; }

  // Some rows by a block of columns, to floats whose rows are `stride` apart.
  void multiply(int64_t begin, int64_t count, int64_t block, float* to, int64_t stride) const {
    const int64_t steps = (K + DEEP - 1) / DEEP, step = ((K + steps - 1) / steps + 31) / 32 * 32;
    for (int64_t k = 0; k < K; k += step)
      for (int64_t row = 0, left = count; left > 0;) {
        const int64_t some = left >= 64 ? 64 : left >= 32 ? 32 : left >= 16 ? 16 : left >= 8 ? 8 : left;
        at::native::cpublas::brgemm(
            some, COLUMNS, std::min(step, K - k), K, COLUMNS, stride, k > 0, x + (begin + row) * K + k,
            weight + (block * K + k) * COLUMNS, to + row * stride, sizeof(T) == 2);
        row += some, left -= some;
      }
  }

  // What follows the product of a row's columns from `from` on, in place.
  void follow(float* own, int64_t row, int64_t from, int64_t count) const {
    const T* beside = residual ? residual + row * N + from : nullptr;
    auto some = [&](int64_t place, int64_t left) {
      Vec value = load(own + place, left);
      if (!bias.empty()) value = value + load(bias.data() + from + place, left);
      value = activated(value, activation);
      if (beside) value = value + load(beside + place, left);
      value.store(own + place, std::min(WIDTH, left));
    };
    int64_t place = 0;
    for (; place + WIDTH <= count; place += WIDTH) some(place, WIDTH);
    if (place < count) some(place, count - place);
  }

  void norm(float* own) const {
    Vec total(0.f), squares(0.f);
    float mean = 0, variance = 0;
    int64_t place = 0;
    for (; place + WIDTH <= N; place += WIDTH) total = total + Vec::loadu(own + place);
    for (mean = sum(total); place < N; ++place) mean += own[place];
    mean /= N;
    for (place = 0; place + WIDTH <= N; place += WIDTH) {
      const Vec off = Vec::loadu(own + place) - Vec(mean);
      squares = at::vec::fmadd(off, off, squares);
    }
    for (variance = sum(squares); place < N; ++place) variance += (own[place] - mean) * (own[place] - mean);
    const float by = 1 / std::sqrt(variance / N + eps);
    for (place = 0; place < N; place += WIDTH) {
      const int64_t left = N - place;
      Vec value = (load(own + place, left) - Vec(mean)) * Vec(by);
      if (!scale.empty()) value = value * load(scale.data() + place, left);
      if (!shift.empty()) value = value + load(shift.data() + place, left);
      value.store(own + place, std::min(WIDTH, left));
    }
  }

  // Some rows by some blocks of columns, done.
  void tile(int64_t begin, int64_t count, int64_t first, int64_t last) const {
    alignas(64) float made[ROWS * COLUMNS];
    for (int64_t block = first; block < last; ++block) {
      const int64_t from = block * COLUMNS, width = std::min(COLUMNS, N - from);
      multiply(begin, count, block, made, COLUMNS);
      for (int64_t row = 0; row < count; ++row) {
        follow(made + row * COLUMNS, begin + row, from, width);
        store_row(made + row * COLUMNS, out + (begin + row) * N + from, width);
      }
    }
  }

  // Whole rows, whose products are to be made first or lie in `made`.
  void whole(int64_t begin, int64_t count, float* made, bool multiplied) const {
    const int64_t stride = blocks() * COLUMNS;
    for (int64_t block = 0; block < blocks() && !multiplied; ++block)
      multiply(begin, count, block, made + block * COLUMNS, stride);
    for (int64_t row = 0; row < count; ++row) {
      follow(made + row * stride, begin + row, 0, N);
      norm(made + row * stride);
      store_row(made + row * stride, out + (begin + row) * N, N);
    }
  }

  // Tiles of rows are dealt out; of fewer than there are threads, the columns too.
  void run(int64_t threads) const {
    const int64_t tiles = (rows + ROWS - 1) / ROWS, stride = blocks() * COLUMNS;
    const int64_t shares = tiles < threads ? std::min(blocks(), (threads + tiles - 1) / tiles) : 1;
    auto count = [&](int64_t tile) { return std::min(ROWS, rows - tile * ROWS); };
    auto bound = [&](int64_t share) { return share * blocks() / shares; };
    std::vector<float> products(normed && shares > 1 ? rows * stride : 0);
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t order = 0; order < tiles; ++order)
      for (int64_t share = 0; share < shares; ++share) {
        const int64_t begin = order * ROWS;
        if (!normed) {
          tile(begin, count(order), bound(share), bound(share + 1));
        } else if (shares == 1) {
          const Scratch made(ROWS * stride);
          whole(begin, count(order), made.get(), false);
        } else {
          for (int64_t block = bound(share); block < bound(share + 1); ++block)
            multiply(begin, count(order), block, products.data() + begin * stride + block * COLUMNS, stride);
        }
        at::native::cpublas::brgemm_release(sizeof(T) == 2);
      }
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < (products.empty() ? 0 : rows); ++row)
      whole(row, 1, products.data() + row * stride, true);
  }
};

inline AtenTensorHandle linear_dense(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* bias, AtenTensorHandle* residual,
    AtenTensorHandle* scale, AtenTensorHandle* shift, int64_t width, int64_t activation, bool normed, double eps) {
  View given(x);
  std::vector<int64_t> sizes(given.sizes, given.sizes + given.dims);
  const int64_t K = sizes.back();
  int64_t rows = 1;
  for (size_t place = 0; place + 1 < sizes.size(); ++place) rows *= sizes[place];
  sizes.back() = width;
  AtenTensorHandle made = empty(sizes, given.dtype);
  auto run = [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> held, beside;
    const T* added = residual ? in_order(View(*residual), beside) : nullptr;
    Dense<T>{in_order(given, held), View(weight).as<T>(), added, View(made).as<T>(), parameters<T>(bias, width),
             parameters<T>(scale, width), parameters<T>(shift, width), rows, K, width, activation, normed,
             static_cast<float>(eps)}.run(threads());
  };
  if (given.dtype == aoti_torch_dtype_float32()) run(float());
  else if (given.dtype == aoti_torch_dtype_bfloat16()) run(c10::BFloat16());
  else require(false, "linear_dense: float32 and bfloat16 are accepted");
  return made;
}

}  // namespace headrace
