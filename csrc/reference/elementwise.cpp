#include <cstring>

#include "reference/reference.h"

namespace fb::reference {

void cast(View x, View out) {
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) store(out, r, c, load(x, r, c));
    }
}

namespace {

uint32_t drawn(uint32_t state, int64_t column) {
    uint32_t z = state + uint32_t(column / 2) * 0x9E3779B9u;
    z = (z ^ z >> 16) * 0x21F0AAADu;
    z = (z ^ z >> 15) * 0x735A2D97u;
    z ^= z >> 15;
    return column % 2 ? z >> 16 : z & 0xFFFF;
}

}  // namespace

void add_drawn(const uint32_t* states, int64_t first, const float* table, float factor, View out) {
    for (int64_t r = 0; r < out.rows; ++r)
        for (int64_t c = 0; c < out.cols; ++c) out.row<float>(r)[c] += factor * table[drawn(states[r], first + c)];
}

void round_at_random(View x, const uint32_t* states, View out) {
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) {
            uint32_t bits;
            std::memcpy(&bits, x.row<float>(r) + c, sizeof bits);
            out.row<uint16_t>(r)[c] = uint16_t((bits + drawn(states[r], c)) >> 16);
        }
    }
}

double sum_squares(View x) {
    double sum = 0;
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) sum += load(x, r, c) * load(x, r, c);
    }
    return sum;
}

}  // namespace fb::reference
