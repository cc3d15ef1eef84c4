// A linear layer whose weights are packed: in blocks of 32 columns [columns / 32, K, 32], read in one stream from the
// first to the last. A register holds neighbouring columns of one k, so that no sum runs across it.

namespace headrace {

constexpr int64_t BLOCK = 32, HALF = 16;
// Up to so many rows are multiplied as the weights are read; of more, some blocks are widened for all of them.
constexpr int64_t FEW = 64, WIDE = 256;
// Bytes ahead of its use that a weight is asked for.
constexpr int64_t AHEAD = 4096;

// Each format says by how many k its scales go, 0 where it has none, and what it holds of the columns from `part` and from `part + HALF` on, as many as a register has.
struct Floats {
  static constexpr int64_t GROUP = 0;
  const float* numbers;
  const float* from = nullptr;

  Floats block(int64_t order, int64_t K) const { return {numbers + order * K * BLOCK}; }
  Floats group(int64_t, int64_t part) const { return {numbers, numbers + part}; }
  void read(int64_t k, Vec& one, Vec& other) const {
    const float* line = from + k * BLOCK;
    __builtin_prefetch(reinterpret_cast<const char*>(line) + AHEAD);
    __builtin_prefetch(reinterpret_cast<const char*>(line + HALF) + AHEAD);
    one = Vec::loadu(line), other = Vec::loadu(line + HALF);
  }
};

// Column c in the lower half of a word, c + 16 in the upper one.
struct Halves {
  static constexpr int64_t GROUP = Floats::GROUP;
  const uint16_t* numbers;
  const uint16_t* from = nullptr;

  Halves block(int64_t order, int64_t K) const { return {numbers + order * K * BLOCK}; }
  Halves group(int64_t, int64_t part) const { return {numbers, numbers + 2 * part}; }
  void read(int64_t k, Vec& one, Vec& other) const {
    using Words = at::vec::Vectorized<int32_t>;
    const uint16_t* line = from + k * BLOCK;
    __builtin_prefetch(reinterpret_cast<const char*>(line) + AHEAD);
    const Words words = Words::loadu(line);
    one = at::vec::cast<float, int32_t>(words << Words(16));
    other = at::vec::cast<float, int32_t>(words & Words(static_cast<int32_t>(0xffff0000)));
  }
};

inline Vec widen_bytes(const int8_t* from) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  float held[WIDTH];
  for (int64_t place = 0; place < WIDTH; ++place) held[place] = from[place];
  return Vec::loadu(held);
#endif
}

// Integers, and of 32 of them, one below another, what they are multiplied by and what is added then.
struct Scaled {
  static constexpr int64_t GROUP = 32;
  const int8_t* numbers;
  const float* scales;
  const int8_t* from = nullptr;
  Vec scale = Vec(0.f), other_scale = Vec(0.f), offset = Vec(0.f), other_offset = Vec(0.f);

  Scaled block(int64_t order, int64_t K) const {
    return {numbers + order * K * BLOCK, scales + order * ((K + GROUP - 1) / GROUP) * 2 * BLOCK};
  }
  Scaled group(int64_t k, int64_t part) const {
    const float* own = scales + k / GROUP * 2 * BLOCK + part;
    return {numbers, scales, numbers + part, Vec::loadu(own), Vec::loadu(own + HALF), Vec::loadu(own + BLOCK),
            Vec::loadu(own + BLOCK + HALF)};
  }
  void read(int64_t k, Vec& one, Vec& other) const {
    const int8_t* line = from + k * BLOCK;
    __builtin_prefetch(line + AHEAD);
    one = at::vec::fmadd(widen_bytes(line), scale, offset);
    other = at::vec::fmadd(widen_bytes(line + HALF), other_scale, other_offset);
  }
};

// R rows by a block's columns from `part` on: as many as fit two registers. Of few rows, U sums run beside another.
template <int R, int U, typename Weights>
inline void multiply_part(
    const float* x, int64_t K, const Weights& weights, float* y, int64_t out, int64_t part) {
  std::array<Vec, U * R> first, second;
  c10::ForcedUnroll<U * R>{}([&](auto place) { first[place] = second[place] = Vec(0.f); });
  auto run = [&](const Weights group, int64_t k, int64_t end) {
    auto step = [&](auto u, int64_t k) __attribute__((always_inline)) {
      Vec one, other;
      group.read(k, one, other);
      c10::ForcedUnroll<R>{}([&](auto r) __attribute__((always_inline)) {
        const Vec value(x[r * K + k]);
        first[u * R + r] = at::vec::fmadd(value, one, first[u * R + r]);
        second[u * R + r] = at::vec::fmadd(value, other, second[u * R + r]);
      });
    };
    for (; k + U <= end; k += U) c10::ForcedUnroll<U>{}([&](auto u) __attribute__((always_inline)) { step(u, k + u); });
    for (; k < end; ++k) step(std::integral_constant<int, 0>{}, k);
  };
  if constexpr (Weights::GROUP == 0)
    run(weights.group(0, part), 0, K);
  else
    for (int64_t begin = 0; begin < K; begin += Weights::GROUP)
      run(weights.group(begin, part), begin, std::min(K, begin + Weights::GROUP));
  c10::ForcedUnroll<R>{}([&](auto r) {
    for (int u = 1; u < U; ++u) first[r] = first[r] + first[u * R + r], second[r] = second[r] + second[u * R + r];
    first[r].store(y + r * out + part);
    second[r].store(y + r * out + part + HALF);
  });
}

// Rows of x by one block of columns, to y [.., out]. As many rows at once as there are registers for.
template <typename Weights>
inline void multiply_block(const float* x, int64_t K, const Weights& block, float* y, int64_t out, int64_t rows) {
  constexpr int MOST = WIDTH == 16 ? 8 : 4;
  for (int64_t part = 0; part < HALF; part += WIDTH) {
    int64_t row = 0;
    for (; row + MOST <= rows; row += MOST) multiply_part<MOST, 1>(x + row * K, K, block, y + row * out, out, part);
    if (MOST > 4 && row + 4 <= rows) {
      multiply_part<4, 1>(x + row * K, K, block, y + row * out, out, part);
      row += 4;
    }
    if (row + 2 <= rows) {
      multiply_part<2, 2>(x + row * K, K, block, y + row * out, out, part);
      row += 2;
    }
    if (row < rows) multiply_part<1, 4>(x + row * K, K, block, y + row * out, out, part);
  }
}

template <typename Weights>
inline void few_rows(const float* x, const Weights& weights, float* y, int64_t rows, int64_t N, int64_t K) {
  const int64_t blocks = (N + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
  for (int64_t order = 0; order < blocks; ++order) {
    const Weights block = weights.block(order, K);
    const int64_t begin = order * BLOCK, width = std::min(BLOCK, N - begin);
    if (width == BLOCK) {
      multiply_block(x, K, block, y + begin, N, rows);
      continue;
    }
    std::vector<float> whole(rows * BLOCK);
    multiply_block(x, K, block, whole.data(), BLOCK, rows);
    for (int64_t row = 0; row < rows; ++row) std::copy_n(whole.data() + row * BLOCK, width, y + row * N + begin);
  }
}

// A block as floats, a row of WIDE for each k.
template <typename Weights>
inline void widen_block(const Weights& block, float* to, int64_t K) {
  const int64_t step = Weights::GROUP ? Weights::GROUP : K;
  for (int64_t part = 0; part < HALF; part += WIDTH)
    for (int64_t begin = 0; begin < K; begin += step) {
      const Weights group = block.group(begin, part);
      for (int64_t k = begin; k < std::min(K, begin + step); ++k) {
        Vec one, other;
        group.read(k, one, other);
        one.store(to + k * WIDE + part);
        other.store(to + k * WIDE + part + HALF);
      }
    }
}

template <typename Weights>
inline void many_rows(const float* x, const Weights& weights, float* y, int64_t rows, int64_t N, int64_t K) {
  std::vector<float> wide(K * WIDE);
  Matrix left(x, rows, K, K, 1);
  for (int64_t begin = 0; begin < N; begin += WIDE) {
    const int64_t width = std::min(WIDE, N - begin), blocks = (width + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t order = 0; order < blocks; ++order)
      widen_block(weights.block(begin / BLOCK + order, K), wide.data() + order * BLOCK, K);
    multiply(Matrix(y + begin, rows, width, N, 1), left, Matrix(wide.data(), K, width, WIDE, 1));
  }
}

inline AtenTensorHandle linear_packed(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* scale, int64_t width) {
  View given(x), held(weight);
  const int64_t rows = given.sizes[0], K = given.sizes[1];
  require(given.dtype == aoti_torch_dtype_float32(), "linear_packed: x is float32");
  const float* from = given.as<float>();
  std::vector<float> copied;
  if (given.strides[1] != 1 || (rows > 1 && given.strides[0] != K)) {
    copied.resize(rows * K);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t k = 0; k < K; ++k) copied[row * K + k] = from[row * given.strides[0] + k * given.strides[1]];
    from = copied.data();
  }
  AtenTensorHandle made = empty({rows, width}, given.dtype);
  float* to = View(made).as<float>();
  auto run = [&](const auto& weights) {
    if (rows <= FEW) few_rows(from, weights, to, rows, width, K);
    else many_rows(from, weights, to, rows, width, K);
  };
  if (held.dtype == aoti_torch_dtype_float32()) run(Floats{held.as<float>()});
  else if (held.dtype == aoti_torch_dtype_bfloat16()) run(Halves{held.as<uint16_t>()});
  else run(Scaled{held.as<int8_t>(), View(*scale).as<float>()});
  return made;
}

}  // namespace headrace
