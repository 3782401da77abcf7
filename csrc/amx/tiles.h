// Eight AMX tiles of 16 rows by 64 bytes: a 2 x 2 square of sums C[i][j], two factors A[i] and two B[j].
// tests/plain_tiles.h is the same in plain C++ and says what each operation computes.
#pragma once
#include "simd/isa.h"

namespace fb::FB_ISA {

struct alignas(64) TileShapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(TileShapes) == 64);
constexpr TileShapes kTileShapes = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16},
};

class Tiles {
public:
    // The shapes are a state of the thread. It goes back to none, because as long as there is one the system saves and
    // restores 8 KB whenever it switches threads.
    struct Use {
        Use() { _tile_loadconfig(&kTileShapes); }
        ~Use() { _tile_release(); }
        Use(const Use&) = delete;
    };

    // Intrinsics name tiles by literals: 0 to 3 are sums, 4 and 5 A, 6 and 7 B.
    FB_INLINE Tiles() {
        asm volatile("" ::: "memory");  // GCC's loads do not say that they read what was stored before
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    template <int i>
    FB_INLINE void load_a(const uint16_t* rows, int64_t stride_bytes) {
        if constexpr (i == 0) _tile_loadd(4, rows, stride_bytes);
        else _tile_loadd(5, rows, stride_bytes);
    }
    template <int j>
    FB_INLINE void load_b(const uint32_t* rows, int64_t stride_bytes) {
        if constexpr (j == 0) _tile_loadd(6, rows, stride_bytes);
        else _tile_loadd(7, rows, stride_bytes);
    }
    template <int i, int j>
    FB_INLINE void dot() {
        if constexpr (i == 0 && j == 0) _tile_dpbf16ps(0, 4, 6);
        else if constexpr (i == 0) _tile_dpbf16ps(1, 4, 7);
        else if constexpr (j == 0) _tile_dpbf16ps(2, 5, 6);
        else _tile_dpbf16ps(3, 5, 7);
    }
    template <int i, int j>
    FB_INLINE void store(float* rows, int64_t stride_bytes) {
        if constexpr (i == 0 && j == 0) _tile_stored(0, rows, stride_bytes);
        else if constexpr (i == 0) _tile_stored(1, rows, stride_bytes);
        else if constexpr (j == 0) _tile_stored(2, rows, stride_bytes);
        else _tile_stored(3, rows, stride_bytes);
    }
};

}  // namespace fb::FB_ISA
