// Linear layers of many rows, and what follows each in the same pass while its numbers are in a core's cache: bias,
// activation, residual and norm. Products are those of torch's oneDNN for tiles, of AVX512, its bfloat16, or AMX; ours
// where there is AVX2 alone. What a processor has no products of is widened as it is read.

namespace at::native::cpublas {
void brgemm(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const float*, const float*, float*, bool);
void brgemm(
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const c10::BFloat16*, const c10::BFloat16*, float*, bool);
void brgemm(
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const unsigned char*, const signed char*, int32_t*, bool);
void brgemm_release(bool);
}  // namespace at::native::cpublas

namespace headrace {

// Columns of a block of weights, rows of a tile. Products are of few heights: each is a kernel made when first needed.
constexpr int64_t COLUMNS = 64, ROWS = 64;
// Of our products, which are of any height: a block's sums of six rows are as many registers as AVX2 has to spare.
constexpr int64_t OWN_COLUMNS = 2 * WIDTH, OWN_ROWS = 96, AT_A_TIME = 6;
// Up to so many rows wait for weights to come from memory: of so many in depth at a time, the next are asked for.
constexpr int64_t WAITING = 24, SHALLOW = 64;
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

inline int64_t height_of_tile(int64_t left) {
  return left >= 64 ? 64 : left >= 32 ? 32 : left >= 16 ? 16 : left >= 8 ? 8 : left;
}

// Some rows by a block of `OWN_COLUMNS`, added to what there is or put in its place. Each row is spelt out: of loops
// and lambdas the compiler keeps the sums of six in memory.
template <size_t... row>
inline void multiply_rows(
    std::index_sequence<row...>, const float* x, int64_t K, const float* block, int64_t depth, float* to,
    int64_t stride, bool add) {
  Vec first[] = {(add ? Vec::loadu(to + row * stride) : Vec(0.f))...};
  Vec second[] = {(add ? Vec::loadu(to + row * stride + WIDTH) : Vec(0.f))...};
  auto step = [&](Vec& one, Vec& other, const Vec& value, const Vec& line, const Vec& next)
                  __attribute__((always_inline)) {
    one = at::vec::fmadd(value, line, one);
    other = at::vec::fmadd(value, next, other);
  };
  for (int64_t k = 0; k < depth; ++k) {
    __builtin_prefetch(reinterpret_cast<const char*>(block + k * OWN_COLUMNS) + AHEAD);
    const Vec line = Vec::loadu(block + k * OWN_COLUMNS), next = Vec::loadu(block + k * OWN_COLUMNS + WIDTH);
    (step(first[row], second[row], Vec(x[row * K + k]), line, next), ...);
  }
  ((first[row].store(to + row * stride), second[row].store(to + row * stride + WIDTH)), ...);
}

// Rows in shares of like height, of `most` at most: `run` is given the first of each, and how many as a constant.
template <typename Run>
inline void in_shares(int64_t rows, int64_t most, const Run& run) {
  const int64_t shares = (rows + most - 1) / most;
  for (int64_t share = 0, row = 0; share < shares; ++share) {
    const int64_t some = (share + 1) * rows / shares - row;
    switch (some) {
      case 1: run(row, std::integral_constant<int, 1>{}); break;
      case 2: run(row, std::integral_constant<int, 2>{}); break;
      case 3: run(row, std::integral_constant<int, 3>{}); break;
      case 4: run(row, std::integral_constant<int, 4>{}); break;
      case 5: run(row, std::integral_constant<int, 5>{}); break;
      default: run(row, std::integral_constant<int, 6>{});
    }
    row += some;
  }
}

inline void multiply_own(
    int64_t rows, const float* x, int64_t K, const float* block, int64_t depth, float* to, int64_t stride, bool add) {
  const int64_t step = rows <= WAITING ? SHALLOW : depth;
  for (int64_t k = 0; k < depth; k += step)
    in_shares(rows, AT_A_TIME, [&](int64_t row, auto count) {
      multiply_rows(
          std::make_index_sequence<decltype(count)::value>{}, x + row * K + k, K, block + k * OWN_COLUMNS, std::min(step, depth - k), to + row * stride, stride, add || k);
    });
}

// As many rows by a block of columns [depth, width], the depths of two neighbours beside one another in bfloat16.
template <typename P>
inline void multiply_tile(
    int64_t rows, const P* x, int64_t K, const P* block, int64_t width, int64_t depth, float* to, int64_t stride,
    bool add) {
  if constexpr (std::is_same_v<P, float>)
    if (width == OWN_COLUMNS) return multiply_own(rows, x, K, block, depth, to, stride, add);
  for (int64_t row = 0, left = rows; left > 0;) {
    const int64_t some = height_of_tile(left);
    at::native::cpublas::brgemm(
        some, COLUMNS, depth, K, COLUMNS, stride, add, x + row * K, block, to + row * stride, sizeof(P) == 2);
    row += some, left -= some;
  }
}

// Of a layer in bytes, a number a column: what its sums are multiplied by, and what they begin with, since each byte of
// a row is larger by `MIDDLE` than what it stands for.
struct Columns {
  std::vector<float> step;
  std::vector<int32_t> begin;
};
constexpr int32_t MIDDLE = 128;
constexpr float LEVELS = 127;

// A row as bytes, and what they are multiplied by: no number where one of the row is none.
inline float to_bytes(const float* from, uint8_t* to, int64_t count) {
  Vec most(0.f);
  for (int64_t place = 0; place < count; place += WIDTH)
    most = at::vec::maximum(most, load(from + place, count - place).abs());
  const float largest = at::vec::vec_reduce_all<float>(
      [](const Vec& one, const Vec& other) { return at::vec::maximum(one, other); }, most);
  const float scale = std::max(largest / LEVELS, std::numeric_limits<float>::min());
  for (int64_t place = 0; place < count; place += WIDTH) {
    alignas(64) float held[WIDTH];
    (load(from + place, count - place) / Vec(scale)).round().store(held);
    const int64_t some = std::min(WIDTH, count - place);
    for (int64_t lane = 0; lane < some; ++lane) to[place + lane] = static_cast<int32_t>(held[lane]) + MIDDLE;
  }
  return scale;
}

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#if defined(CPU_CAPABILITY_AVX512)
using Ints = __m512i;
inline Ints read_ints(const void* from) { return _mm512_loadu_si512(from); }
inline Ints repeated(int32_t held) { return _mm512_set1_epi32(held); }
inline Vec to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints add_products(Ints sum, Ints x, Ints weight) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, x, weight);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(x, weight), _mm512_set1_epi16(1)));
#endif
}
#else
using Ints = __m256i;
inline Ints read_ints(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline Ints repeated(int32_t held) { return _mm256_set1_epi32(held); }
inline Vec to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
// A weight has seven bits: two products of it and a byte are a number of sixteen.
inline Ints add_products(Ints sum, Ints x, Ints weight) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, weight), _mm256_set1_epi16(1)));
}
#endif
// Four bytes, over and over.
inline Ints four_bytes(const uint8_t* from) {
  int32_t held;
  std::memcpy(&held, from, 4);
  return repeated(held);
}
// As many rows as leave registers for what is multiplied.
constexpr int64_t BYTES_AT_A_TIME = WIDTH == 16 ? 6 : 4;

// Some rows by a block of `OWN_COLUMNS`, four neighbours of a column side by side.
template <size_t... row>
inline void multiply_byte_rows(
    std::index_sequence<row...>, const uint8_t* x, const float* scale, int64_t K, const int8_t* block,
    const float* step, const int32_t* begin, float* to, int64_t stride) {
  Ints first[] = {(static_cast<void>(row), read_ints(begin))...};
  Ints second[] = {(static_cast<void>(row), read_ints(begin + WIDTH))...};
  auto add = [&](Ints& one, Ints& other, Ints value, Ints line, Ints next) __attribute__((always_inline)) {
    one = add_products(one, value, line);
    other = add_products(other, value, next);
  };
  for (int64_t k = 0; k < K; k += 4) {
    const int8_t* from = block + k * OWN_COLUMNS;
    __builtin_prefetch(from + AHEAD);
    const Ints line = read_ints(from), next = read_ints(from + 4 * WIDTH);
    (add(first[row], second[row], four_bytes(x + row * K + k), line, next), ...);
  }
  auto finish = [&](Ints sums, float own, int64_t from, float* out) {
    (to_floats(sums) * Vec(own) * Vec::loadu(step + from)).store(out + from);
  };
  ((finish(first[row], scale[row], 0, to + row * stride), finish(second[row], scale[row], WIDTH, to + row * stride)),
   ...);
}
#endif

// As many rows of bytes by a block of columns from `from` on, to floats.
inline void multiply_bytes(
    int64_t rows, const uint8_t* x, const float* scale, int64_t K, const int8_t* block, int64_t width,
    const Columns& columns, int64_t from, float* to, int64_t stride) {
  const float* step = columns.step.data() + from;
  const int32_t* begin = columns.begin.data() + from;
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if (width == OWN_COLUMNS) {
    in_shares(rows, BYTES_AT_A_TIME, [&](int64_t row, auto count) {
      multiply_byte_rows(
          std::make_index_sequence<decltype(count)::value>{}, x + row * K, scale + row, K, block, step, begin, to + row * stride, stride);
    });
    return;
  }
#endif
  alignas(64) int32_t sums[ROWS * COLUMNS];
  for (int64_t row = 0, left = rows; left > 0;) {
    const int64_t some = height_of_tile(left);
    at::native::cpublas::brgemm(
        some, COLUMNS, K, K, COLUMNS, COLUMNS, false, x + row * K, reinterpret_cast<const signed char*>(block), sums,
        true);
    for (int64_t r = 0; r < some; ++r)
      for (int64_t column = 0; column < COLUMNS; ++column)
        to[(row + r) * stride + column] =
            static_cast<float>(sums[r * COLUMNS + column] + begin[column]) * scale[row + r] * step[column];
    row += some, left -= some;
  }
}

// Rows as products take them, and where those are bytes what each row's are multiplied by.
template <typename P>
struct Rows {
  const P* numbers;
  std::vector<P> held;
  std::vector<float> scale;
};

// Of numbers T, and weights that lie as W, in products of P.
template <typename T, typename W, typename P>
struct Dense {
  // So much of the sums at a time: a tile of both operands stays in the cache of a core, and what was widened nearer.
  static constexpr int64_t DEEP = std::is_same_v<W, P> ? 4096 / sizeof(P) : 256;
  const T* x;
  const W* weight;
  const T* residual;
  T* out;
  std::vector<float> bias, scale, shift;
  Columns columns;
  int64_t rows, K, N, width, activation;
  bool normed;
  float eps;

  int64_t blocks() const { return (N + width - 1) / width; }
  int64_t height() const { return width == OWN_COLUMNS ? OWN_ROWS : ROWS; }

  // Some rows of a tile by blocks of columns, to floats whose rows are `stride` apart. Of each step in depth a tile of
  // the rows stays in a core's cache for all blocks.
  void multiply(const Rows<P>& tile, int64_t count, int64_t first, int64_t last, float* to, int64_t stride) const {
    if constexpr (std::is_same_v<P, uint8_t>) {
      for (int64_t block = first; block < last; ++block)
        multiply_bytes(
            count, tile.numbers, tile.scale.data(), K, weight + block * K * width, width, columns, block * width,
            to + (block - first) * width, stride);
      return;
    } else {
      const int64_t steps = (K + DEEP - 1) / DEEP, step = ((K + steps - 1) / steps + 31) / 32 * 32;
      for (int64_t k = 0; k < K; k += step)
        for (int64_t block = first; block < last; ++block) {
          const int64_t depth = std::min(step, K - k);
          const W* from = weight + (block * K + k) * width;
          float* own = to + (block - first) * width;
          if constexpr (std::is_same_v<W, P>) {
            multiply_tile(count, tile.numbers + k, K, from, width, depth, own, stride, k > 0);
          } else {
            alignas(64) float wide[DEEP * COLUMNS];
            for (int64_t place = 0; place < depth * width; place += OWN_COLUMNS) {
              __builtin_prefetch(reinterpret_cast<const char*>(from + place) + AHEAD);
              widen(from + place, wide + place, OWN_COLUMNS);
            }
            multiply_tile<float>(count, tile.numbers + k, K, wide, width, depth, own, stride, k > 0);
          }
        }
    }
  }

  // Rows from one on as products take them.
  Rows<P> read(int64_t begin, int64_t count) const {
    Rows<P> made{};
    const T* from = x + begin * K;
    if constexpr (std::is_same_v<T, P>) {
      made.numbers = from;
      return made;
    } else {
      made.held.resize(count * K);
      if constexpr (std::is_same_v<P, uint8_t>) {
        made.scale.resize(count);
        for (int64_t row = 0; row < count; ++row)
          made.scale[row] = to_bytes(from + row * K, made.held.data() + row * K, K);
      } else {
        widen(from, made.held.data(), count * K);
      }
      made.numbers = made.held.data();
      return made;
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
  void tile(const Rows<P>& given, int64_t begin, int64_t count, int64_t first, int64_t last) const {
    alignas(64) float made[ROWS * COLUMNS];
    for (int64_t block = first; block < last; ++block) {
      const int64_t from = block * width, some = std::min(width, N - from);
      multiply(given, count, block, block + 1, made, width);
      for (int64_t row = 0; row < count; ++row) {
        follow(made + row * width, begin + row, from, some);
        store_row(made + row * width, out + (begin + row) * N + from, some);
      }
    }
  }

  // Whole rows, whose products lie in `made`.
  void whole(int64_t begin, int64_t count, float* made) const {
    const int64_t stride = blocks() * width;
    for (int64_t row = 0; row < count; ++row) {
      follow(made + row * stride, begin + row, 0, N);
      norm(made + row * stride);
      store_row(made + row * stride, out + (begin + row) * N, N);
    }
  }

  // Tiles of rows are dealt out; of fewer than there are threads, the columns too.
  void run(int64_t threads) const {
    const int64_t tiles = (rows + height() - 1) / height(), stride = blocks() * width;
    const int64_t shares = tiles < threads ? std::min(blocks(), (threads + tiles - 1) / tiles) : 1;
    auto bound = [&](int64_t share) { return share * blocks() / shares; };
    std::vector<float> products(normed && shares > 1 ? rows * stride : 0);
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t order = 0; order < tiles; ++order)
      for (int64_t share = 0; share < shares; ++share) {
        const int64_t begin = order * height(), count = std::min(height(), rows - begin);
        const Rows<P> given = read(begin, count);
        if (!normed) {
          tile(given, begin, count, bound(share), bound(share + 1));
        } else {
          const Scratch own(shares == 1 ? count * stride : 0);
          float* made = shares == 1 ? own.get() : products.data() + begin * stride;
          multiply(given, count, bound(share), bound(share + 1), made + bound(share) * width, stride);
          if (shares == 1) whole(begin, count, made);
        }
        if (width != OWN_COLUMNS) at::native::cpublas::brgemm_release(sizeof(P) < 4);
      }
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < (products.empty() ? 0 : rows); ++row) whole(row, 1, products.data() + row * stride);
  }
};

inline AtenTensorHandle linear_dense(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* steps, AtenTensorHandle* bias,
    AtenTensorHandle* residual, AtenTensorHandle* scale, AtenTensorHandle* shift, int64_t width, int64_t activation,
    bool normed, double eps) {
  View given(x), held(weight);
  std::vector<int64_t> sizes(given.sizes, given.sizes + given.dims);
  const int64_t K = sizes.back(), columns = held.sizes[2];
  int64_t rows = 1;
  for (size_t place = 0; place + 1 < sizes.size(); ++place) rows *= sizes[place];
  sizes.back() = width;
  require(columns == COLUMNS || columns == OWN_COLUMNS, "linear_dense: its weight lies as for another processor");
  AtenTensorHandle made = empty(sizes, given.dtype);
  Columns each;
  if (steps) {
    View both(*steps);
    const int64_t count = both.sizes[1];
    const float* from = both.as<float>();
    each.step.assign(from, from + count);
    for (int64_t column = 0; column < count; ++column)
      each.begin.push_back(-MIDDLE * static_cast<int32_t>(from[count + column]));
  }
  auto run = [&](auto number, auto lying, auto multiplied) {
    using T = decltype(number);
    using W = decltype(lying);
    std::vector<T> ordered, beside;
    const T* added = residual ? in_order(View(*residual), beside) : nullptr;
    Dense<T, W, decltype(multiplied)>{
        in_order(given, ordered), held.as<W>(), added, View(made).as<T>(), parameters<T>(bias, width),
        parameters<T>(scale, width), parameters<T>(shift, width), each, rows, K, width, columns, activation, normed,
        static_cast<float>(eps)}.run(threads());
  };
  const bool half = held.dtype == aoti_torch_dtype_bfloat16(), paired = held.dims == 4;
  if (given.dtype == aoti_torch_dtype_float32()) {
    require(!half, "linear_dense: rows of float32 and weights of bfloat16 do not go together");
    if (steps) run(float(), int8_t(), uint8_t());
    else run(float(), float(), float());
  } else {
    require(given.dtype == aoti_torch_dtype_bfloat16() && half, "linear_dense: float32 and bfloat16 are accepted");
    if (paired) run(c10::BFloat16(), c10::BFloat16(), c10::BFloat16());
    else run(c10::BFloat16(), c10::BFloat16(), float());
  }
  return made;
}

}  // namespace headrace
