// Attention within each sequence of a packed row, and the vector that a sequence's rows are pooled to.

namespace headrace {

enum Relation : int64_t { EACH, CAUSAL, CHUNKED };
enum Added : int64_t { NONE, ALIBI, RELATIVE };
// Queries whose scores are made at a time.
constexpr int64_t AT_ONCE = 32;

struct Varlen {
  View q, k, v;
  const int32_t* bounds;
  std::vector<float> sinks, bias;
  float scale, cap;
  int64_t relation, left, right, added, heads, groups, D, Dv;

  // The keys [first, last) that a query sees of `count`.
  int64_t first(int64_t place) const {
    if (left < 0) return 0;
    return relation == CHUNKED ? place / (left + 1) * (left + 1) : std::max<int64_t>(0, place - left);
  }
  int64_t last(int64_t place, int64_t count) const {
    if (relation != EACH) return place + 1;
    return right < 0 ? count : std::min(count, place + right + 1);
  }
  float beside(int64_t head, int64_t distance) const {
    if (added == ALIBI) return -bias[head] * std::abs(distance);
    const int64_t width = bias.size() / heads, reach = (width - 1) / 2;
    return bias[head * width + std::clamp(distance, -reach, reach) + reach];
  }
};

// Scores [begin, end) to weights, in place, and zeros in their stead up to `width`.
inline void softmax(float* scores, int64_t begin, int64_t end, int64_t width, float cap, const float* sink) {
  std::fill(scores, scores + begin, 0.f);
  std::fill(scores + std::max(begin, end), scores + width, 0.f);
  const float none = -std::numeric_limits<float>::infinity();
  Vec most(sink ? *sink : none), total(0.f);
  auto each = [&](auto change) {
    int64_t place = begin;
    for (; place + WIDTH <= end; place += WIDTH) change(Vec::loadu(scores + place)).store(scores + place);
    if (place >= end) return;
    const int64_t some = end - place;
    change(Vec::set(Vec(none), Vec::loadu(scores + place, some), some)).store(scores + place, some);
  };
  if (cap > 0) each([&](Vec x) { return Vec(cap) * (x / Vec(cap)).tanh(); });
  each([&](Vec x) {
    most = at::vec::maximum(most, x);
    return x;
  });
  const float top = at::vec::vec_reduce_all<float>(
      [](const Vec& one, const Vec& other) { return at::vec::maximum(one, other); }, most);
  each([&](Vec x) {
    x = (x - Vec(top)).exp();
    total = total + x;
    return x;
  });
  const Vec by(1 / (sum(total) + (sink ? std::exp(*sink - top) : 0)));
  each([&](Vec x) { return x * by; });
}

// One head of keys of one sequence, with all its heads of queries.
template <typename T>
void attend(const Varlen& p, T* out, int64_t begin, int64_t count, int64_t kv) {
  const int64_t tiles = (count + BLOCK - 1) / BLOCK, parts = (p.Dv + BLOCK - 1) / BLOCK;
  const Scratch keys(tiles * p.D * BLOCK), values(parts * tiles * BLOCK * BLOCK), q(AT_ONCE * p.D);
  const Scratch scores(AT_ONCE * tiles * BLOCK), made(AT_ONCE * parts * BLOCK), row(std::max(p.D, p.Dv));
  // What is past the last key is read as if it were one: it weighs nothing, and so it must be a number.
  for (int64_t part = 0; part < parts; ++part) {
    float* own = values.get() + part * tiles * BLOCK * BLOCK;
    std::fill(own + count * BLOCK, own + tiles * BLOCK * BLOCK, 0.f);
  }
  for (int64_t place = 0; place < count; ++place) {
    widen(p.k.as<T>() + (begin + place) * p.k.strides[0] + kv * p.k.strides[1], row.get(), p.D);
    float* column = keys.get() + place / BLOCK * p.D * BLOCK + place % BLOCK;
    for (int64_t d = 0; d < p.D; ++d) column[d * BLOCK] = row[d];
    widen(p.v.as<T>() + (begin + place) * p.v.strides[0] + kv * p.v.strides[1], row.get(), p.Dv);
    for (int64_t part = 0; part < parts; ++part)
      std::copy_n(row.get() + part * BLOCK, std::min(BLOCK, p.Dv - part * BLOCK),
                  values.get() + (part * tiles * BLOCK + place) * BLOCK);
  }
  for (int64_t head = kv * p.groups; head < (kv + 1) * p.groups; ++head)
    for (int64_t from = 0; from < count; from += AT_ONCE) {
      const int64_t rows = std::min(AT_ONCE, count - from);
      const int64_t lowest = p.first(from) / BLOCK, highest = (p.last(from + rows - 1, count) + BLOCK - 1) / BLOCK;
      const int64_t width = (highest - lowest) * BLOCK, shift = lowest * BLOCK;
      for (int64_t r = 0; r < rows; ++r) {
        float* own = q.get() + r * p.D;
        widen(p.q.as<T>() + (begin + from + r) * p.q.strides[0] + head * p.q.strides[1], own, p.D);
        for (int64_t d = 0; d < p.D; ++d) own[d] *= p.scale;
      }
      for (int64_t tile = lowest; tile < highest; ++tile)
        multiply_block(q.get(), p.D, Floats{keys.get() + tile * p.D * BLOCK},
                       scores.get() + (tile - lowest) * BLOCK, width, rows);
      for (int64_t r = 0; r < rows; ++r) {
        float* own = scores.get() + r * width;
        const int64_t place = from + r, first = p.first(place), last = p.last(place, count);
        for (int64_t key = first; p.added != NONE && key < last; ++key) own[key - shift] += p.beside(head, key - place);
        softmax(own, first - shift, last - shift, width, p.cap, p.sinks.empty() ? nullptr : &p.sinks[head]);
      }
      for (int64_t part = 0; part < parts; ++part)
        multiply_block(scores.get(), width, Floats{values.get() + (part * tiles * BLOCK + shift) * BLOCK},
                       made.get() + part * BLOCK, parts * BLOCK, rows);
      for (int64_t r = 0; r < rows; ++r)
        store_row(made.get() + r * parts * BLOCK, out + ((begin + from + r) * p.heads + head) * p.Dv, p.Dv);
    }
}

inline AtenTensorHandle attention_varlen(
    AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle cu_seqlens, AtenTensorHandle* sinks,
    AtenTensorHandle* bias, double scale, int64_t relation, int64_t left, int64_t right, double cap, int64_t added) {
  View queries(q), keys(k), values(v), bounds(cu_seqlens);
  const int64_t tokens = queries.sizes[0], heads = queries.sizes[1], kv_heads = keys.sizes[1];
  require(queries.strides[2] == 1 && keys.strides[2] == 1 && values.strides[2] == 1 && bounds.strides[0] == 1,
          "attention_varlen: its operands lie otherwise");
  auto floats = [](AtenTensorHandle* given) {
    if (!given) return std::vector<float>();
    View held(*given);
    std::vector<float> copied;
    const float* from = in_order(held, copied);
    int64_t count = 1;
    for (int64_t place = 0; place < held.dims; ++place) count *= held.sizes[place];
    return std::vector<float>(from, from + count);
  };
  Varlen p{queries, keys, values, bounds.as<int32_t>(), floats(sinks), floats(bias), static_cast<float>(scale),
           static_cast<float>(cap), relation, left, right, added, heads, heads / kv_heads, queries.sizes[2],
           values.sizes[2]};
  AtenTensorHandle made = empty({tokens, heads, p.Dv}, queries.dtype);
  const int64_t sequences = bounds.sizes[0] - 1, end = p.bounds[sequences];
  View result(made);
  auto run = [&](auto zero) {
    using T = decltype(zero);
    T* out = result.as<T>();
    std::fill(out + end * heads * p.Dv, out + tokens * heads * p.Dv, T(0));
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t sequence = 0; sequence < sequences; ++sequence)
      for (int64_t kv = 0; kv < kv_heads; ++kv)
        if (p.bounds[sequence + 1] > p.bounds[sequence])
          attend<T>(p, out, p.bounds[sequence], p.bounds[sequence + 1] - p.bounds[sequence], kv);
  };
  if (queries.dtype == aoti_torch_dtype_float32()) run(float());
  else if (queries.dtype == aoti_torch_dtype_bfloat16()) run(c10::BFloat16());
  else if (queries.dtype == aoti_torch_dtype_float16()) run(c10::Half());
  else require(false, "attention_varlen: float32, bfloat16 and float16 are accepted");
  return made;
}

}  // namespace headrace
