// Causal attention over paged caches: of few queries key by key as the cache lies, of many by products of matrices.

namespace headrace {

// Of so many new tokens each key is read once for all; keys in a tile stay in the cache of a core for all queries.
constexpr int64_t FEW_TOKENS = 4, TILE = 64;
// Scores of a step of products at most.
constexpr int64_t SCORES = 1 << 20, QUERIES = 64;

struct Paged {
  View q, k_cache, v_cache, blocks;
  const int32_t *bounds, *context;
  float *sinks, scale, cap;
  bool chunked;
  int64_t left, block, kv_heads, groups, D, Dv;

  // The first key that a query at `place` sees; its last is its own.
  int64_t first(int64_t place) const {
    if (left < 0) return 0;
    return chunked ? place / (left + 1) * (left + 1) : std::max<int64_t>(0, place - left);
  }
  // The row of the pool that holds a sequence's key.
  int64_t row(int64_t sequence, int64_t place) const {
    return static_cast<int64_t>(blocks.as<int32_t>()[sequence * blocks.strides[0] + place / block * blocks.strides[1]]) *
        block + place % block;
  }
  template <typename T>
  const T* query(int64_t token, int64_t head) const {
    return q.as<T>() + token * q.strides[0] + head * q.strides[1];
  }
};

template <typename T>
inline const T* at_row(const View& cache, int64_t row, int64_t head) {
  return cache.as<T>() + row * cache.strides[1] + head * cache.strides[2];
}

// Scores [count] to weights, in place; what is not in [begin, end) weighs nothing.
inline void soften(float* scores, int64_t count, int64_t begin, int64_t end, float cap, const float* sink) {
  for (int64_t place = 0; place < begin; ++place) scores[place] = 0;
  for (int64_t place = end; place < count; ++place) scores[place] = 0;
  float* own = scores + begin;
  const int64_t width = end - begin;
  float most = sink ? *sink : -std::numeric_limits<float>::infinity();
  for (int64_t place = 0; place < width; ++place) {
    if (cap > 0) own[place] = cap * std::tanh(own[place] / cap);
    most = std::max(most, own[place]);
  }
  float total = sink ? std::exp(*sink - most) : 0;
  for (int64_t place = 0; place < width; place += WIDTH) {
    const int64_t some = std::min(WIDTH, width - place);
    (Vec::loadu(own + place, some) - Vec(most)).exp().store(own + place, some);
  }
  for (int64_t place = 0; place < width; ++place) total += own[place];
  for (int64_t place = 0; place < width; ++place) own[place] /= total;
}

template <typename T>
inline void put(const Paged& p, const float* from, T* out, int64_t token, int64_t head) {
  narrow(from, out + (token * p.kv_heads * p.groups + head) * p.Dv, p.Dv);
}

template <typename T>
inline float dot(const float* one, const T* other, int64_t count) {
  Vec total(0.f);
  for (int64_t place = 0; place < count; place += WIDTH)
    total = at::vec::fmadd(load(one + place, count - place), load(other + place, count - place), total);
  return sum(total);
}

// Few new tokens of a sequence, the query heads of one head of keys.
template <typename T>
void attend_few(const Paged& p, T* out, int64_t sequence, int64_t head) {
  const int64_t begin = p.bounds[sequence], tokens = p.bounds[sequence + 1] - begin, held = p.context[sequence];
  const int64_t lowest = p.first(held), count = held + tokens - lowest, queries = tokens * p.groups;
  std::vector<float> q(queries * p.D), scores(queries * count), sums(queries * p.Dv, 0.f);
  std::vector<int64_t> rows(count);
  for (int64_t place = 0; place < count; ++place) rows[place] = p.row(sequence, lowest + place);
  for (int64_t query = 0; query < queries; ++query) {
    float* own = q.data() + query * p.D;
    widen(p.query<T>(begin + query / p.groups, head * p.groups + query % p.groups), own, p.D);
    for (int64_t place = 0; place < p.D; ++place) own[place] *= p.scale;
  }
  for (int64_t place = 0; place < count; ++place) {
    const T* key = at_row<T>(p.k_cache, rows[place], head);
    for (int64_t query = 0; query < queries; ++query)
      scores[query * count + place] = dot(q.data() + query * p.D, key, p.D);
  }
  for (int64_t query = 0; query < queries; ++query) {
    const int64_t place = held + query / p.groups;
    const float* sink = p.sinks ? p.sinks + head * p.groups + query % p.groups : nullptr;
    soften(scores.data() + query * count, count, p.first(place) - lowest, place + 1 - lowest, p.cap, sink);
  }
  for (int64_t tile = 0; tile < count; tile += TILE) {
    const int64_t end = std::min(count, tile + TILE);
    for (int64_t query = 0; query < queries; ++query)
      for (int64_t column = 0; column < p.Dv; column += WIDTH) {
        const int64_t some = std::min(WIDTH, p.Dv - column);
        float* own = sums.data() + query * p.Dv + column;
        Vec total = load(own, some);
        for (int64_t place = tile; place < end; ++place) {
          const T* value = at_row<T>(p.v_cache, rows[place], head) + column;
          total = at::vec::fmadd(Vec(scores[query * count + place]), load(value, some), total);
        }
        total.store(own, some);
      }
  }
  for (int64_t query = 0; query < queries; ++query)
    put(p, sums.data() + query * p.Dv, out, begin + query / p.groups, head * p.groups + query % p.groups);
}

// Many new tokens of a sequence: keys and values of a head side by side, and some queries at a time.
template <typename T>
void attend_many(const Paged& p, T* out, int64_t sequence) {
  const int64_t begin = p.bounds[sequence], tokens = p.bounds[sequence + 1] - begin, held = p.context[sequence];
  const int64_t lowest = p.first(held), count = held + tokens - lowest, groups = p.groups;
  const int64_t step = std::clamp<int64_t>(SCORES / (groups * count), 1, QUERIES);
  std::vector<float> keys(count * p.D), values(count * p.Dv), q(step * groups * p.D), sums(step * groups * p.Dv);
  std::vector<float> scores(step * groups * count);
  for (int64_t head = 0; head < p.kv_heads; ++head) {
#pragma omp parallel for schedule(static)
    for (int64_t place = 0; place < count; ++place) {
      const int64_t row = p.row(sequence, lowest + place);
      widen(at_row<T>(p.k_cache, row, head), keys.data() + place * p.D, p.D);
      widen(at_row<T>(p.v_cache, row, head), values.data() + place * p.Dv, p.Dv);
    }
    for (int64_t token = 0; token < tokens; token += step) {
      const int64_t queries = std::min(step, tokens - token) * groups, place = held + token;
      const int64_t from = p.first(place) - lowest, width = place + queries / groups - lowest - from;
      for (int64_t query = 0; query < queries; ++query) {
        float* own = q.data() + query * p.D;
        widen(p.query<T>(begin + token + query / groups, head * groups + query % groups), own, p.D);
        for (int64_t column = 0; column < p.D; ++column) own[column] *= p.scale;
      }
      multiply(Matrix(scores.data(), queries, width, width, 1), Matrix(q.data(), queries, p.D, p.D, 1),
               Matrix(keys.data() + from * p.D, p.D, width, 1, p.D));
#pragma omp parallel for schedule(static)
      for (int64_t query = 0; query < queries; ++query) {
        const int64_t own = place + query / groups;
        const float* sink = p.sinks ? p.sinks + head * groups + query % groups : nullptr;
        soften(scores.data() + query * width, width, p.first(own) - lowest - from, own + 1 - lowest - from, p.cap, sink);
      }
      multiply(Matrix(sums.data(), queries, p.Dv, p.Dv, 1), Matrix(scores.data(), queries, width, width, 1),
               Matrix(values.data() + from * p.Dv, width, p.Dv, p.Dv, 1));
      for (int64_t query = 0; query < queries; ++query)
        put(p, sums.data() + query * p.Dv, out, begin + token + query / groups, head * groups + query % groups);
    }
  }
}

template <typename T>
void write_rows(const View& x, const View& cache, const View& slots) {
  const int64_t width = cache.sizes[3];
  require(x.dtype == cache.dtype && x.strides[2] == 1, "attention_paged: keys or values lie otherwise");
  for (int64_t token = 0; token < x.sizes[0]; ++token) {
    const int64_t slot = slots.as<int64_t>()[token * slots.strides[0]];
    for (int64_t head = 0; slot >= 0 && head < x.sizes[1]; ++head)
      std::memcpy(const_cast<T*>(at_row<T>(cache, slot, head)),
                  x.as<T>() + token * x.strides[0] + head * x.strides[1], width * sizeof(T));
  }
}

template <typename T>
void attend_all(const Paged& p, T* out, int64_t tokens, int64_t sequences) {
  const int64_t width = p.kv_heads * p.groups * p.Dv;
  std::fill(out + p.bounds[sequences] * width, out + tokens * width, T(0));
  auto count = [&](int64_t sequence) { return p.bounds[sequence + 1] - p.bounds[sequence]; };
  std::vector<int64_t> few;
  for (int64_t sequence = 0; sequence < sequences; ++sequence)
    if (count(sequence) > FEW_TOKENS)
      attend_many<T>(p, out, sequence);
    else if (count(sequence) > 0)
      few.push_back(sequence);
#pragma omp parallel for schedule(dynamic)
  for (int64_t pair = 0; pair < static_cast<int64_t>(few.size()) * p.kv_heads; ++pair)
    attend_few<T>(p, out, few[pair / p.kv_heads], pair % p.kv_heads);
}

inline AtenTensorHandle attention_paged(
    AtenTensorHandle q, AtenTensorHandle* k, AtenTensorHandle* v, AtenTensorHandle k_cache, AtenTensorHandle v_cache,
    AtenTensorHandle slots, AtenTensorHandle blocks, AtenTensorHandle cu_seqlens, AtenTensorHandle context,
    AtenTensorHandle* sinks, double scale, bool chunked, int64_t left, double cap) {
  View queries(q), keys(k_cache), values(v_cache), bounds(cu_seqlens), held(context), places(slots);
  const int64_t tokens = queries.sizes[0], heads = queries.sizes[1], kv_heads = keys.sizes[2];
  require(queries.dtype == keys.dtype && queries.dtype == values.dtype, "attention_paged: q and its caches differ in dtype");
  auto rowwise = [](const View& cache) {
    return cache.strides[0] == cache.sizes[1] * cache.strides[1] && cache.strides[3] == 1;
  };
  require(
      queries.strides[2] == 1 && bounds.strides[0] == 1 && held.strides[0] == 1 && rowwise(keys) && rowwise(values),
      "attention_paged: its operands lie otherwise");
  std::vector<float> sunk;
  if (sinks) {
    View each(*sinks);
    require(each.dtype == aoti_torch_dtype_float32(), "attention_paged: sinks are float32");
    for (int64_t head = 0; head < heads; ++head) sunk.push_back(each.as<float>()[head * each.strides[0]]);
  }
  Paged p{queries, keys, values, View(blocks), bounds.as<int32_t>(), held.as<int32_t>(), sinks ? sunk.data() : nullptr,
          static_cast<float>(scale), static_cast<float>(cap), chunked, left, keys.sizes[1], kv_heads, heads / kv_heads,
          keys.sizes[3], values.sizes[3]};
  AtenTensorHandle made = empty({tokens, heads, p.Dv}, queries.dtype);
  View out(made);
  auto run = [&](auto zero) {
    using T = decltype(zero);
    if (k && v) {
      write_rows<T>(View(*k), keys, places);
      write_rows<T>(View(*v), values, places);
    }
    attend_all<T>(p, out.as<T>(), tokens, bounds.sizes[0] - 1);
  };
  if (queries.dtype == aoti_torch_dtype_float32()) run(float());
  else if (queries.dtype == aoti_torch_dtype_bfloat16()) run(c10::BFloat16());
  else if (queries.dtype == aoti_torch_dtype_float16()) run(c10::Half());
  else require(false, "attention_paged: float32, bfloat16 and float16 are accepted");
  return made;
}

}  // namespace headrace
