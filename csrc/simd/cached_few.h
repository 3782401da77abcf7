// Attention over a cache for a few queries, as in decoding: each query reads the keys in place, one row at a time.
// Tiles of queries would leave most lanes empty.
//
// A unit is one query's heads that share a key head, and one segment of the cache. It forms the sums of the segment by
// themselves, so that threads share a long cache, and the sums of all segments are then added in order. So the result
// depends neither on the threads nor on the calls that divide the cache.
#pragma once
#include "simd/attention_tiles.h"
#include "simd/cached_rows.h"

namespace fb::FB_ISA {

constexpr int64_t kFewCached = 4;
constexpr int64_t kRoundUnits = 32;  // units whose sums are held at once

// out (a whole number of vectors) = q (d) . key for kLanes keys, `stride` apart. Only `count` of them exist.
FB_INLINE Vec dots_of(const float* q, const float* keys, int64_t stride, int64_t count, int64_t d) {
    Vec dots[kLanes] = {};
    int64_t c = 0;
    if (count == kLanes)
        for (; c + kLanes <= d; c += kLanes) {
            const Vec part = load(q + c);
            unrolled<kLanes>([&](auto i) { dots[i()] += part * load(keys + i() * stride + c); });
        }
    for (int64_t i = 0; i < count; i++)
        for_lanes(d - c, [&](auto get, auto) { dots[i] += get(q + c) * get(keys + i * stride + c); });
    return lane_sums(dots);
}

// sums (d) += p[i] * values[i] for `count` rows of values, `stride` apart.
FB_INLINE void add_values(const float* p, const float* values, int64_t stride, int64_t count, int64_t d, float* sums) {
    constexpr int kColumns = 4;
    int64_t c = 0;
    for (; c + kColumns * kLanes <= d; c += kColumns * kLanes) {
        Vec part[kColumns];
        for (int n = 0; n < kColumns; n++) part[n] = load(sums + c + n * kLanes);
        for (int64_t i = 0; i < count; i++)
            for (int n = 0; n < kColumns; n++) part[n] += p[i] * load(values + i * stride + c + n * kLanes);
        for (int n = 0; n < kColumns; n++) store(sums + c + n * kLanes, part[n]);
    }
    for (int64_t i = 0; i < count; i++)
        for_lanes(d - c,
                  [&](auto get, auto put) { put(sums + c, get(sums + c) + p[i] * get(values + i * stride + c)); });
}

// The scratch of a call: running sums of every query and head, and those of each unit of a round.
struct FewScratch {
    int64_t heads, group, row, tile, segments;  // row: floats of (top, total, sums); tile: of dequantised rows

    FewScratch(const CacheShape& s, int64_t kv_heads, int64_t d, TensorType type)
        : heads(s.heads),
          group(s.heads / kv_heads),
          row(kLanes + round_up(d, kLanes)),
          tile(type == TensorType::F32 ? 0 : kLanes * d),
          segments(std::max<int64_t>(1, kRoundUnits / std::max<int64_t>(1, s.queries * kv_heads))) {}
    int64_t unit() const { return group * (row + kSegment) + tile; }
    int64_t floats(const CacheShape& s) const {
        return s.queries * heads * row + segments * s.queries * (heads / group) * unit();
    }
};

// The sums of query row i's heads that share key head `kv`, over the keys [first, last) of a segment. `room` receives
// for each head (top, total, sums), then holds probabilities, and dequantised rows.
template <TensorType type>
void attend_segment(const View& q, const KeyCache& cache, const CacheShape& s, const FewScratch& sizes, int64_t i,
                    int64_t kv, int64_t first, int64_t last, float* room) {
    const int64_t d = cache.head_dim, count = last - first, padded = round_up(count, kLanes);
    float *p = room + sizes.group * sizes.row, *tile = p + sizes.group * kSegment;
    const auto rows_at = [&](int64_t j, bool value) {
        return cached_rows<type>(cache, first + j, kv, value, std::min<int64_t>(kLanes, count - j), tile);
    };
    for (int64_t j = 0; j < count; j += kLanes) {
        const auto keys = rows_at(j, false);
        for (int64_t g = 0; g < sizes.group; g++)
            store(p + g * kSegment + j, dots_of(q.row<float>(i) + (kv * sizes.group + g) * d, keys.data, keys.stride,
                                                std::min<int64_t>(kLanes, count - j), d) *
                                            s.scale);
    }
    for (int64_t g = 0; g < sizes.group; g++) {
        float *scores = p + g * kSegment, *out = room + g * sizes.row;
        if (s.softcap > 0) soften(s.softcap, padded, scores, nullptr);
        std::fill(scores + count, scores + padded, kMasked);
        Vec best = load(scores), part{};
        for (int64_t j = kLanes; j < padded; j += kLanes) best = max(best, load(scores + j));
        const float top = max_lane(best);
        for (int64_t j = 0; j < padded; j += kLanes) {
            const Vec e = exp(load(scores + j) - top);
            store(scores + j, e);
            part += e;
        }
        out[0] = top, out[1] = sum(part);
        std::fill_n(out + kLanes, sizes.row - kLanes, 0.0f);
    }
    for (int64_t j = 0; j < count; j += kLanes) {
        const auto values = rows_at(j, true);
        for (int64_t g = 0; g < sizes.group; g++)
            add_values(p + g * kSegment + j, values.data, values.stride, std::min<int64_t>(kLanes, count - j), d,
                       room + g * sizes.row + kLanes);
    }
}

// Adds the sums of a segment to those of the segments before it; both are (top, total, sums).
FB_INLINE void join(const float* segment, int64_t row, float* sums) {
    const float top = std::max(sums[0], segment[0]);
    const float before = exp1(sums[0] - top), now = exp1(segment[0] - top);
    sums[0] = top;
    sums[1] = sums[1] * before + segment[1] * now;
    for (int64_t c = kLanes; c < row; c += kLanes) store(sums + c, load(sums + c) * before + load(segment + c) * now);
}

template <TensorType type>
void attend_few(const View& q, const KeyCache& cache, const CacheShape& s, const View& state, const View& out) {
    const int64_t d = cache.head_dim;
    const FewScratch sizes(s, cache.kv_heads, d, type);
    // The caller's own scratch; the units below must not request any.
    auto* running = static_cast<float*>(thread_scratch(size_t(sizes.floats(s)) * 4));
    float* units = running + s.queries * s.heads * sizes.row;
    const auto place = [&](int64_t i, int64_t head) { return running + (i * s.heads + head) * sizes.row; };
    for (int64_t i = 0; i < s.queries; i++)
        for (int64_t head = 0; head < s.heads; head++) {
            float* row = place(i, head);
            const float* from = s.begins ? nullptr : state.row<float>(i) + head * (d + 2);
            std::fill_n(row, sizes.row, 0.0f);
            row[0] = from ? from[0] : s.sinks ? s.sinks[head] : kMasked;
            row[1] = from ? from[1] : s.sinks ? 1.0f : 0.0f;
            if (from) std::copy_n(from + 2, d, row + kLanes);
        }
    const int64_t start = s.first_key(0) / kSegment, end = (s.last_key(s.queries - 1) + kSegment - 1) / kSegment;
    const auto visible = [&](int64_t i, int64_t segment) {
        return std::pair(std::max(s.first_key(i), segment * kSegment),
                         std::min(s.last_key(i), (segment + 1) * kSegment));
    };
    for (int64_t from = start; from < end; from += sizes.segments) {
        const int64_t count = std::min(sizes.segments, end - from), pairs = s.queries * cache.kv_heads;
        parallel_for(count * pairs, [&](int64_t unit) {
            const int64_t i = unit % pairs / cache.kv_heads, kv = unit % cache.kv_heads;
            const auto [first, last] = visible(i, from + unit / pairs);
            if (first < last) attend_segment<type>(q, cache, s, sizes, i, kv, first, last, units + unit * sizes.unit());
        });
        for (int64_t unit = 0; unit < count * pairs; unit++) {
            const int64_t i = unit % pairs / cache.kv_heads, kv = unit % cache.kv_heads;
            const auto [first, last] = visible(i, from + unit / pairs);
            for (int64_t g = 0; g < sizes.group && first < last; g++)
                join(units + unit * sizes.unit() + g * sizes.row, sizes.row, place(i, kv * sizes.group + g));
        }
    }
    for (int64_t i = 0; i < s.queries; i++)
        for (int64_t head = 0; head < s.heads; head++) {
            const float* row = place(i, head);
            if (!s.ends) {
                float* to = state.row<float>(i) + head * (d + 2);
                to[0] = row[0], to[1] = row[1];
                std::copy_n(row + kLanes, d, to + 2);
                continue;
            }
            by_dtype(out.dtype, [&](auto* tag) {
                using O = std::remove_pointer_t<decltype(tag)>;
                for_lanes(d, [&](auto get, auto put) { put(out.row<O>(i) + head * d, get(row + kLanes) / row[1]); });
            });
        }
}

}  // namespace fb::FB_ISA
