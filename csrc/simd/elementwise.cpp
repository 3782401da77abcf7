#include <cstring>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {

void cast(View x, View out) {
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            parallel_rows(x.rows, x.cols, [&](int64_t t) {
                for_lanes(x.cols, [&](auto get, auto put) { put(out.row<O>(t), get(x.row<X>(t))); });
            });
        });
    });
}

namespace {

constexpr int64_t kPiece = 512;  // elements whose random bits are drawn at once

// The random numbers of a row from column `first` on, at most kPiece. Two come from each word, in a plain loop that the
// compiler can vectorise.
struct Drawn {
    uint16_t numbers[kPiece + 2];
    const uint16_t* begin;

    Drawn(uint32_t state, int64_t first, int64_t count) : begin(numbers + first % 2) {
        uint32_t words[kPiece / 2 + 1];
        const uint32_t base = state + uint32_t(first / 2) * 0x9E3779B9u;
        const int64_t size = (first % 2 + count + 1) / 2;
        for (int64_t w = 0; w < size; w++) {
            uint32_t z = base + uint32_t(w) * 0x9E3779B9u;
            z = (z ^ z >> 16) * 0x21F0AAADu;
            z = (z ^ z >> 15) * 0x735A2D97u;
            words[w] = z ^ z >> 15;
        }
        std::memcpy(numbers, words, size_t(size) * sizeof(uint32_t));  // little-endian, as all supported systems are
    }
};

void round_row(const float* x, uint32_t state, uint16_t* out, int64_t n) {
    for (int64_t first = 0; first < n; first += kPiece) {
        const int64_t count = std::min(kPiece, n - first);
        const Drawn drawn(state, first, count);
        uint32_t bits[kPiece];
        std::memcpy(bits, x + first, size_t(count) * sizeof(float));
        for (int64_t i = 0; i < count; i++) out[first + i] = uint16_t((bits[i] + drawn.begin[i]) >> 16);
    }
}

void add_row(uint32_t state, int64_t begin, const float* table, float factor, float* out, int64_t n) {
    for (int64_t first = 0; first < n; first += kPiece) {
        const int64_t count = std::min(kPiece, n - first);
        const Drawn drawn(state, begin + first, count);
        for (int64_t i = 0; i < count; i++) out[first + i] += factor * table[drawn.begin[i]];
    }
}

}  // namespace

void round_at_random(View x, const uint32_t* states, View out) {
    parallel_rows(x.rows, x.cols,
                  [&](int64_t r) { round_row(x.row<float>(r), states[r], out.row<uint16_t>(r), x.cols); });
}

void add_drawn(const uint32_t* states, int64_t first, const float* table, float factor, View out) {
    parallel_rows(out.rows, out.cols,
                  [&](int64_t r) { add_row(states[r], first, table, factor, out.row<float>(r), out.cols); });
}

double sum_squares(View x) {
    double total = 0;
    for (int64_t t = 0; t < x.rows; t++) {
        const float* row = x.row<float>(t);
        // Short sums in float, then double: accurate enough for a norm, at vector speed.
        for (int64_t first = 0; first < x.cols; first += 1024) {
            Vec squares{};
            for_lanes(std::min<int64_t>(1024, x.cols - first), [&](auto get, auto) {
                const Vec v = get(row + first);
                squares += v * v;
            });
            total += double(sum(squares));
        }
    }
    return total;
}

}  // namespace fb::FB_ISA
