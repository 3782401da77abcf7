#include <algorithm>

#include "bindings/arrays.h"

namespace fb {
namespace {

template <class Byte>
using Bytes = nb::ndarray<Byte, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_cache(TensorType kind, int64_t kv_heads, int64_t head_dim) {
    if (kind != TensorType::F32 && kind != TensorType::Q8_0 && kind != TensorType::Q4_0)
        refuse("a cache holds F32, Q8_0 or Q4_0");
    if (kv_heads <= 0 || head_dim <= 0 || head_dim % block_shape(kind).weights)
        refuse("a head must fill whole blocks of the cache's type");
}

// The cache in `bytes`, whose first segment holds token `first`. It must have room for the tokens before `stop`.
KeyCache cache_of(const void* bytes, size_t size, int type, int64_t kv_heads, int64_t head_dim, int64_t first,
                  int64_t stop) {
    const auto kind = TensorType(type);
    check_cache(kind, kv_heads, head_dim);
    if (first < 0 || first % kSegment) refuse("a piece of a cache must begin with a segment");
    const KeyCache cache{static_cast<uint8_t*>(const_cast<void*>(bytes)), kind, kv_heads, head_dim, first};
    const int64_t last = product({std::max(stop, first)}, "the cache");
    const int64_t row_bytes = product({head_dim / block_shape(kind).weights, block_shape(kind).bytes}, "a head");
    const int64_t segments = (last - first + kSegment - 1) / kSegment;
    if (int64_t(size) < product({segments, kv_heads, 2 * kSegment, row_bytes}, "the cache"))
        refuse("the piece of the cache is too short");
    return cache;
}

void cache_rows(InArray k_, InArray v_, int64_t start, Bytes<uint8_t> bytes, int type, int64_t kv_heads,
                int64_t first) {
    const View k = view(k_, "k"), v = view(v_, "v");
    check_shape(v, k.rows, k.cols, "v");
    for (const auto& [x, name] : {std::pair{k, "k"}, {v, "v"}}) check_f32(x, name);
    if (kv_heads <= 0 || k.cols % kv_heads) refuse("kv_heads must divide k's width");
    if (start < first || start > kMost) refuse("the rows begin outside the piece of the cache");
    const KeyCache cache =
        cache_of(bytes.data(), bytes.size(), type, kv_heads, k.cols / kv_heads, first, start + k.rows);
    nb::gil_scoped_release release;
    const Timed timed("cache_rows", 0);
    ops().cache_rows(k, v, start, cache);
}

// heads, kv_heads, keys, window, softcap; `from` and `to`: None for all keys in one call.
CacheShape shape_of(int64_t queries, int64_t heads, int64_t kv_heads, int64_t keys, float scale, int64_t window,
                    float softcap, int64_t from, int64_t to, bool begins, bool ends) {
    check_softcap(softcap);
    if (heads <= 0 || kv_heads <= 0 || heads % kv_heads) refuse("heads must be a multiple of kv_heads");
    if (queries < 0 || keys < queries || keys > kMost) refuse("a sequence has more queries than keys, or too many");
    if (from < 0 || from % kSegment || to < from || to > keys || (to % kSegment && to != keys))
        refuse("a part of the keys must begin and end with a segment");
    return {heads, scale, queries, keys, from, to, checked_window(window), softcap, nullptr, begins, ends};
}

void cached_attention(InArray q_, Bytes<const uint8_t> bytes, int type, Array out_, int64_t heads, int64_t kv_heads,
                      int64_t keys, float scale, int64_t window, float softcap, std::optional<InFloats> sinks,
                      int64_t from, std::optional<int64_t> to, std::optional<Array> state_, bool begins, bool ends) {
    const View q = view(q_, "q"), out = view(out_, "out"), state = view(state_, "state");
    CacheShape shape =
        shape_of(q.rows, heads, kv_heads, keys, scale, window, softcap, from, to ? *to : keys, begins, ends);
    if (!q.cols || q.cols % heads) refuse("heads must divide q's width");
    const int64_t d = q.cols / heads;
    check_f32(q, "q");
    check_shape(out, q.rows, q.cols, "out");
    check_shape(state, q.rows, product({heads, d + 2}, "state"), "state");
    check_f32(state, "state");
    if (!state && !(begins && ends)) refuse("a call that does not visit all keys needs a state");
    if (sinks) check_length(int64_t(sinks->shape(0)), heads, "sinks");
    shape.sinks = sinks ? sinks->data() : nullptr;
    const KeyCache cache = cache_of(bytes.data(), bytes.size(), type, kv_heads, d, from, shape.to);
    nb::gil_scoped_release release;
    const Timed timed("cached_attention", ops().cached_attention_cost(shape, kv_heads, d, cache.type).flops);
    ops().cached_attention(q, cache, shape, state, out);
}

PyCost cached_attention_cost(int64_t queries, int type, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t keys,
                             int64_t window, float softcap, int64_t from, std::optional<int64_t> to) {
    const CacheShape shape =
        shape_of(queries, heads, kv_heads, keys, 1, window, softcap, from, to ? *to : keys, true, true);
    check_cache(TensorType(type), kv_heads, head_dim);
    check_sizes({heads, head_dim, keys});
    if (queries > INT32_MAX) refuse("a sequence has too many queries");  // the cost is counted query by query
    return as_pair(ops().cached_attention_cost(shape, kv_heads, head_dim, TensorType(type)));
}

void hadamard(Array x_, int64_t size) {
    const View x = view(x_, "x");
    check_f32(x, "x");
    if (size <= 0 || (size & (size - 1)) || x.cols % size) refuse("size must be a power of two that divides x's width");
    nb::gil_scoped_release release;
    const Timed timed("hadamard", 0);
    ops().hadamard(x, size);
}

}  // namespace

void bind_key_cache(nb::module_& m) {
    m.attr("SEGMENT") = kSegment;
    m.def("cache_rows", &cache_rows, nb::arg("k"), nb::arg("v"), nb::arg("start"), nb::arg("cache"), nb::arg("type"),
          nb::arg("kv_heads"), nb::arg("first") = 0,
          "Store k, v (T, Hk d) float32 of tokens [start, start + T) in a piece of a cache, bytes (n,), whose first "
          "segment of SEGMENT tokens begins with token `first`. type: F32, Q8_0 or Q4_0");
    m.def("cached_attention", &cached_attention, nb::arg("q"), nb::arg("cache"), nb::arg("type"), nb::arg("out"),
          nb::arg("heads"), nb::arg("kv_heads"), nb::arg("keys"), nb::kw_only(), nb::arg("scale"),
          nb::arg("window") = 0, nb::arg("softcap") = 0.0f, nb::arg("sinks") = nb::none(), nb::arg("first") = 0,
          nb::arg("last") = nb::none(), nb::arg("state") = nb::none(), nb::arg("begins") = true, nb::arg("ends") = true,
          "out (T, H d), float32 or bf16 = attention of q (T, H d) float32, the last T of `keys` tokens. The cache is "
          "the piece for keys [first, last). With several pieces, in order, state (T, H (d + 2)) carries the softmax; "
          "`begins` with the first piece that q sees, `ends` with the last one. All divisions give the same bits");
    m.def("cached_attention_cost", &cached_attention_cost, nb::arg("queries"), nb::arg("type"), nb::arg("heads"),
          nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("keys"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
          nb::arg("first") = 0, nb::arg("last") = nb::none(),
          "(floating-point operations, bytes of scratch per thread) of cached_attention");
    m.def("hadamard", &hadamard, nb::arg("x"), nb::arg("size"),
          "x (T, n size) float32 times the Hadamard matrix of `size`, a power of two, divided by sqrt(size), in place. "
          "Twice gives x again");
}

}  // namespace fb
