// Causal attention over paged caches: of few queries key by key as the cache lies, of many by products of
// matrices, a tile of keys at a time.

namespace headrace {

// Of so many new tokens each key is read once for all; values in a tile stay in the cache of a core for all queries.
constexpr int64_t FEW_TOKENS = 4, TILE = 64;
// Of more, queries that share a reading of their keys, those of one product of them, and the keys of one.
constexpr int64_t SPAN = 1536, LEAST_SPAN = 96, QUERIES = 192, KEYS = 256;

// Where more query heads read one head of keys, so many at once, each of their parts as if it had keys of its own.
constexpr int64_t GROUPS = 16;

struct Paged {
  View q, k_cache, v_cache, blocks;
  const int32_t *bounds, *context;
  float *sinks, scale, cap;
  bool chunked;
  int64_t left, block, kv_heads, groups, D, Dv, parts;

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

inline int64_t parts_of(int64_t groups) {
  int64_t parts = 1;
  while (groups % parts || groups / parts > GROUPS) ++parts;
  return parts;
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
    const T* key = at_row<T>(p.k_cache, rows[place], head / p.parts);
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
          const T* value = at_row<T>(p.v_cache, rows[place], head / p.parts) + column;
          total = at::vec::fmadd(Vec(scores[query * count + place]), load(value, some), total);
        }
        total.store(own, some);
      }
  }
  for (int64_t query = 0; query < queries; ++query)
    put(p, sums.data() + query * p.Dv, out, begin + query / p.groups, head * p.groups + query % p.groups);
}

// Scores [count] of a query, its highest so far and the sum of its weights, to weights; what is not in [begin, end) weighs
// nothing. What was summed by the weights before shrinks by what is returned.
inline float soften_more(
    float* scores, int64_t count, int64_t begin, int64_t end, float cap, float& top, float& total) {
  begin = std::min(begin, std::max<int64_t>(end, 0));
  const int64_t from = begin / WIDTH * WIDTH, to = std::max(from, (end + WIDTH - 1) / WIDTH * WIDTH);
  if (cap > 0)
    for (int64_t place = from; place < to; place += WIDTH)
      ((Vec::loadu(scores + place) / Vec(cap)).tanh() * Vec(cap)).store(scores + place);
  std::fill_n(scores, from, 0.f);
  if (to < count) std::fill(scores + to, scores + count, 0.f);
  if (from == to) return 1;
  std::fill(scores + from, scores + begin, -std::numeric_limits<float>::infinity());
  std::fill(scores + end, scores + to, -std::numeric_limits<float>::infinity());
  Vec most(top), sums(0.f);
  for (int64_t place = from; place < to; place += WIDTH) most = at::vec::maximum(most, Vec::loadu(scores + place));
  const float highest = at::vec::vec_reduce_all<float>(
      [](const Vec& one, const Vec& other) { return at::vec::maximum(one, other); }, most);
  for (int64_t place = from; place < to; place += WIDTH) {
    const Vec own = (Vec::loadu(scores + place) - Vec(highest)).exp();
    own.store(scores + place);
    sums = sums + own;
  }
  const float shrunk = std::exp(top - highest);
  top = highest;
  total = total * shrunk + sum(sums);
  return shrunk;
}

// Some new tokens of a sequence, the query heads of one head of keys: what each tile of keys adds to all their sums. It
// takes as much whatever came before.
template <typename T>
struct Span {
  const Paged& p;
  std::vector<float> keys, values, q, sums, top, total, scores;
  int64_t begin = 0, place = 0, tokens = 0, head = 0;

  Span(const Paged& paged, int64_t most)
      : p(paged), keys(KEYS * p.D), values(KEYS * p.Dv), q(most * p.groups * p.D), sums(most * p.groups * p.Dv),
        top(most * p.groups), total(most * p.groups), scores(std::min(most, some_tokens(QUERIES)) * p.groups * KEYS) {}

  // Those that have so many queries of one head of keys, or one.
  int64_t some_tokens(int64_t queries) const { return std::max<int64_t>(1, queries / p.groups); }

  // Tokens of the step from `begin_` on, at `place_` of their sequence.
  void attend(T* out, int64_t sequence, int64_t begin_, int64_t place_, int64_t tokens_, int64_t head_) {
    begin = begin_, place = place_, tokens = tokens_, head = head_;
    for (int64_t query = 0; query < tokens * p.groups; ++query) {
      const int64_t of = head * p.groups + query % p.groups;
      float* own = q.data() + query * p.D;
      widen(p.query<T>(begin + query / p.groups, of), own, p.D);
      for (int64_t column = 0; column < p.D; ++column) own[column] *= p.scale;
      top[query] = p.sinks ? p.sinks[of] : -std::numeric_limits<float>::infinity();
      total[query] = p.sinks ? 1 : 0;
    }
    std::fill_n(sums.data(), tokens * p.groups * p.Dv, 0.f);
    for (int64_t key = p.first(place); key < place + tokens; key += KEYS) {
      const int64_t count = std::min(KEYS, place + tokens - key);
      for (int64_t order = 0; order < count; ++order) {
        const int64_t row = p.row(sequence, key + order);
        widen(at_row<T>(p.k_cache, row, head / p.parts), keys.data() + order * p.D, p.D);
        widen(at_row<T>(p.v_cache, row, head / p.parts), values.data() + order * p.Dv, p.Dv);
      }
      for (int64_t token = 0; token < tokens; token += some_tokens(QUERIES))
        add(token, std::min(some_tokens(QUERIES), tokens - token), key, count);
    }
    for (int64_t query = 0; query < tokens * p.groups; ++query) {
      float* own = sums.data() + query * p.Dv;
      for (int64_t column = 0; column < p.Dv; ++column) own[column] /= total[query];
      put(p, own, out, begin + query / p.groups, head * p.groups + query % p.groups);
    }
  }

  // What `count` keys from one on add to the sums of `some` tokens from one on.
  void add(int64_t token, int64_t some, int64_t key, int64_t count) {
    if (key >= place + token + some || key + count <= p.first(place + token)) return;
    // A row of scores is as many registers, the numbers past the last key of no matter.
    const int64_t queries = some * p.groups, from = token * p.groups, wide = (count + WIDTH - 1) / WIDTH * WIDTH;
    float* own = sums.data() + from * p.Dv;
    multiply(Matrix(scores.data(), queries, count, wide, 1), Matrix(q.data() + from * p.D, queries, p.D, p.D, 1),
             Matrix(keys.data(), p.D, count, 1, p.D));
    for (int64_t query = 0; query < queries; ++query) {
      const int64_t at = place + token + query / p.groups;
      const int64_t first = std::max<int64_t>(0, p.first(at) - key), end = std::min(count, at + 1 - key);
      const float shrunk =
          soften_more(scores.data() + query * wide, count, first, end, p.cap, top[from + query], total[from + query]);
      if (shrunk != 1)
        for (int64_t column = 0; column < p.Dv; ++column) own[query * p.Dv + column] *= shrunk;
    }
    add_product(Matrix(own, queries, p.Dv, p.Dv, 1), Matrix(scores.data(), queries, count, wide, 1),
                Matrix(values.data(), count, p.Dv, p.Dv, 1));
  }
};

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

// Every core has some of the many new tokens of sequences, and of few new tokens some heads.
template <typename T>
void attend_all(const Paged& p, T* out, int64_t tokens, int64_t sequences) {
  const int64_t width = p.kv_heads * p.groups * p.Dv;
  std::fill(out + p.bounds[sequences] * width, out + tokens * width, T(0));
  const int64_t share = tokens * p.kv_heads * p.groups / omp_get_max_threads();
  const int64_t most = std::clamp<int64_t>(std::clamp(share, LEAST_SPAN, SPAN) / p.groups, 1, tokens);
  std::vector<int64_t> few;
  std::vector<std::array<int64_t, 2>> many;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    const int64_t begin = p.bounds[sequence], end = p.bounds[sequence + 1];
    if (end - begin > FEW_TOKENS)
      for (int64_t token = begin; token < end; token += most) many.push_back({sequence, token});
    else if (end > begin)
      few.push_back(sequence);
  }
  if (!many.empty()) {
#pragma omp parallel
    {
      Span<T> span(p, most);
#pragma omp for schedule(dynamic)
      for (int64_t pair = 0; pair < static_cast<int64_t>(many.size()) * p.kv_heads; ++pair) {
        const auto [sequence, token] = many[pair / p.kv_heads];
        const int64_t some = std::min<int64_t>(most, p.bounds[sequence + 1] - token);
        const int64_t place = p.context[sequence] + token - p.bounds[sequence];
        span.attend(out, sequence, token, place, some, pair % p.kv_heads);
      }
    }
  }
#pragma omp parallel for schedule(dynamic)
  for (int64_t pair = 0; pair < static_cast<int64_t>(few.size()) * p.kv_heads; ++pair)
    attend_few<T>(p, out, few[pair / p.kv_heads], pair % p.kv_heads);
}

inline AtenTensorHandle attention_paged(
    AtenTensorHandle q, AtenTensorHandle* k, AtenTensorHandle* v, AtenTensorHandle k_cache, AtenTensorHandle* v_cache,
    AtenTensorHandle slots, AtenTensorHandle blocks, AtenTensorHandle cu_seqlens, AtenTensorHandle context,
    AtenTensorHandle* sinks, double scale, bool chunked, int64_t left, double cap, int64_t v_width) {
  View queries(q), keys(k_cache), values(v_cache ? *v_cache : k_cache), bounds(cu_seqlens), held(context), places(slots);
  const int64_t tokens = queries.sizes[0], heads = queries.sizes[1];
  const int64_t parts = parts_of(heads / keys.sizes[2]), kv_heads = keys.sizes[2] * parts;
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
          keys.sizes[3], !v_cache && v_width ? v_width : values.sizes[3], parts};
  AtenTensorHandle made = empty({tokens, heads, p.Dv}, queries.dtype);
  View out(made);
  auto run = [&](auto zero) {
    using T = decltype(zero);
    if (k) write_rows<T>(View(*k), keys, places);
    if (v && v_cache) write_rows<T>(View(*v), values, places);
    attend_all<T>(p, out.as<T>(), tokens, bounds.sizes[0] - 1);
  };
  if (queries.dtype == aoti_torch_dtype_float32()) run(float());
  else if (queries.dtype == aoti_torch_dtype_bfloat16()) run(c10::BFloat16());
  else if (queries.dtype == aoti_torch_dtype_float16()) run(c10::Half());
  else require(false, "attention_paged: float32, bfloat16 and float16 are accepted");
  return made;
}

}  // namespace headrace
