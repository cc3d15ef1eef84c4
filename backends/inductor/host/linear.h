// A linear layer whose weights are held in 16 bits and widened in registers.
//
// Weights lie [columns / 32, K, 16, 2]: for each k a line of the cache, of which a register of 32-bit words holds the
// columns c in the lower halves and c + 16 in the upper ones. So they are read in one stream,
// widened by a shift or a mask, and no sum runs across a register.

namespace headrace {

constexpr int64_t BLOCK = 32, HALF = 16;
// Up to so many rows are multiplied as the weights are read; of more, a block of weights is widened for all of them.
constexpr int64_t FEW = 64, WIDE = 256;
// How far ahead of its use a weight is asked for.
constexpr int64_t AHEAD = 2048;

inline Vec low(const at::vec::Vectorized<int32_t>& words) {
  return at::vec::cast<float, int32_t>(words << at::vec::Vectorized<int32_t>(16));
}

inline Vec high(const at::vec::Vectorized<int32_t>& words) {
  return at::vec::cast<float, int32_t>(words & at::vec::Vectorized<int32_t>(static_cast<int32_t>(0xffff0000)));
}

// R rows by a block's columns from `part` on: as many as fit two registers. Of few rows, U sums run beside another.
template <int R, int U>
inline void multiply_block(
    const float* x, int64_t ld, const uint16_t* weights, float* y, int64_t out, int64_t K, int64_t part) {
  Vec first[U][R], second[U][R];
  for (int u = 0; u < U; ++u)
    for (int r = 0; r < R; ++r) first[u][r] = second[u][r] = Vec(0.f);
  auto step = [&](int u, int64_t k) {
    const uint16_t* line = weights + k * BLOCK + 2 * part;
    __builtin_prefetch(line + AHEAD);
    auto words = at::vec::Vectorized<int32_t>::loadu(line);
    const Vec one = low(words), other = high(words);
    for (int r = 0; r < R; ++r) {
      const Vec value(x[r * ld + k]);
      first[u][r] = at::vec::fmadd(value, one, first[u][r]);
      second[u][r] = at::vec::fmadd(value, other, second[u][r]);
    }
  };
  int64_t k = 0;
  for (; k + U <= K; k += U)
    for (int u = 0; u < U; ++u) step(u, k + u);
  for (; k < K; ++k) step(0, k);
  for (int r = 0; r < R; ++r) {
    for (int u = 1; u < U; ++u) first[0][r] = first[0][r] + first[u][r], second[0][r] = second[0][r] + second[u][r];
    first[0][r].store(y + r * out + part);
    second[0][r].store(y + r * out + part + HALF);
  }
}

// Rows of x [.., ld] by one block of columns, to y [.., out]. As many rows at once as there are registers for.
inline void multiply_rows(
    const float* x, int64_t ld, const uint16_t* block, float* y, int64_t out, int64_t rows, int64_t K) {
  constexpr int MOST = WIDTH == 16 ? 8 : 4;
  for (int64_t part = 0; part < HALF; part += WIDTH) {
    int64_t row = 0;
    for (; row + MOST <= rows; row += MOST)
      multiply_block<MOST, 1>(x + row * ld, ld, block, y + row * out, out, K, part);
    if (MOST > 4 && row + 4 <= rows) {
      multiply_block<4, 1>(x + row * ld, ld, block, y + row * out, out, K, part);
      row += 4;
    }
    if (row + 2 <= rows) {
      multiply_block<2, 2>(x + row * ld, ld, block, y + row * out, out, K, part);
      row += 2;
    }
    if (row < rows) multiply_block<1, 4>(x + row * ld, ld, block, y + row * out, out, K, part);
  }
}

inline void few_rows(const float* x, const uint16_t* weights, float* y, int64_t rows, int64_t N, int64_t K) {
  const int64_t blocks = (N + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    const uint16_t* held = weights + block * K * BLOCK;
    const int64_t begin = block * BLOCK, width = std::min(BLOCK, N - begin);
    if (width == BLOCK) {
      multiply_rows(x, K, held, y + begin, N, rows, K);
      continue;
    }
    std::vector<float> whole(rows * BLOCK);
    multiply_rows(x, K, held, whole.data(), BLOCK, rows, K);
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(whole.data() + row * BLOCK, width, y + row * N + begin);
  }
}

// Some blocks as floats [K, WIDE].
inline void widen_blocks(const uint16_t* weights, float* to, int64_t blocks, int64_t K) {
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t k = 0; k < K; ++k) {
      const uint16_t* line = weights + (block * K + k) * BLOCK;
      float* row = to + k * WIDE + block * BLOCK;
      for (int64_t part = 0; part < HALF; part += WIDTH) {
        auto words = at::vec::Vectorized<int32_t>::loadu(line + 2 * part);
        low(words).store(row + part);
        high(words).store(row + part + HALF);
      }
    }
}

inline void many_rows(const float* x, const uint16_t* weights, float* y, int64_t rows, int64_t N, int64_t K) {
  std::vector<float> wide(K * WIDE);
  Matrix left(x, rows, K, K, 1);
  for (int64_t begin = 0; begin < N; begin += WIDE) {
    const int64_t width = std::min(WIDE, N - begin);
    widen_blocks(weights + begin * K, wide.data(), (width + BLOCK - 1) / BLOCK, K);
    multiply(Matrix(y + begin, rows, width, N, 1), left, Matrix(wide.data(), K, width, WIDE, 1));
  }
}

inline AtenTensorHandle linear_widened(AtenTensorHandle x, AtenTensorHandle weight, int64_t width) {
  View given(x), held(weight);
  const int64_t rows = given.sizes[0], K = given.sizes[1];
  require(given.dtype == aoti_torch_dtype_float32(), "linear_widened: x is float32");
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
  (rows <= FEW ? few_rows : many_rows)(from, held.as<uint16_t>(), to, rows, width, K);
  return made;
}

}  // namespace headrace
