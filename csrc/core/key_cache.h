// How a decoder stores the keys and values of one sequence: in segments of a fixed number of tokens, one after another.
#pragma once
#include "quant/formats.h"

namespace fb {

// Tokens of a segment. Sums over keys are formed segment by segment, so the number is the same for all kernels.
constexpr int64_t kSegment = 128;

// A segment holds, for each of kv_heads heads, kSegment rows of keys and then kSegment rows of values; a row is
// head_dim numbers of `type`, in whole blocks. `data` is the start of the segment that holds token `first`, a multiple
// of kSegment.
struct KeyCache {
    uint8_t* data;
    TensorType type;
    int64_t kv_heads, head_dim, first;

    int64_t row_bytes() const {
        const BlockShape b = block_shape(type);
        return head_dim / b.weights * b.bytes;
    }
    int64_t segment_bytes() const { return kv_heads * 2 * kSegment * row_bytes(); }
    // The key of a token, or its value.
    uint8_t* row(int64_t token, int64_t head, bool value) const {
        const int64_t at = token - first;
        return data + at / kSegment * segment_bytes() + ((head * 2 + value) * kSegment + at % kSegment) * row_bytes();
    }
};

// The queries of a sequence, and the keys of it that a call of cached_attention visits.
struct CacheShape {
    int64_t heads;
    float scale;
    int64_t queries, keys;  // the last query sees all keys of the sequence, the one before it all but the last, ...
    int64_t from, to;    // the keys of this call; `from` is a multiple of kSegment, and so is `to` unless it is `keys`
    int64_t window;      // a query sees at most this many keys, including its own; 0: no limit
    float softcap;       // a scaled score s becomes softcap * tanh(s / softcap); 0: no cap
    const float* sinks;  // (H), may be absent: logits that take part in the softmax, with a value of zero
    bool begins, ends;   // whether this call is the first for these queries, and the last

    // The keys [first, last) of query i that this call visits.
    int64_t last_of(int64_t i) const { return keys - queries + i + 1; }
    int64_t first_key(int64_t i) const {
        const int64_t first = window > 0 && last_of(i) > window ? last_of(i) - window : 0;
        return first > from ? first : from;
    }
    int64_t last_key(int64_t i) const { return last_of(i) < to ? last_of(i) : to; }
};

}  // namespace fb
