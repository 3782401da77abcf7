// Characters of UTF-8 text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fb::text {

struct Char {
    uint32_t code;
    uint32_t bytes;
};

inline bool is_continuation(char byte) { return (uint8_t(byte) & 0xC0) == 0x80; }

// Reads the character at `at` < `end`. Returns U+FFFD over one byte if the bytes are not UTF-8.
inline Char read_char(const char* at, const char* end) {
    const auto byte = [at](int i) { return uint32_t(uint8_t(at[i])); };
    const auto more = [at, end](int count) {
        if (end - at <= count) return false;
        for (int i = 1; i <= count; i++)
            if (!is_continuation(at[i])) return false;
        return true;
    };
    const uint32_t first = byte(0);
    if (first < 0x80) return {first, 1};
    if (first >= 0xC2 && first < 0xE0 && more(1)) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
    if (first >= 0xE0 && first < 0xF0 && more(2)) {
        const uint32_t code = (first & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
        if (code >= 0x800 && (code < 0xD800 || code >= 0xE000)) return {code, 3};
    }
    if (first >= 0xF0 && first < 0xF5 && more(3)) {
        const uint32_t code = (first & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
        if (code >= 0x10000 && code < 0x110000) return {code, 4};
    }
    return {0xFFFD, 1};
}

inline void append(std::string& text, uint32_t code) {
    if (code < 0x80) {
        text += char(code);
        return;
    }
    if (code < 0x800) {
        text += char(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            text += char(0xE0 | code >> 12);
        } else {
            text += char(0xF0 | code >> 18);
            text += char(0x80 | (code >> 12 & 0x3F));
        }
        text += char(0x80 | (code >> 6 & 0x3F));
    }
    text += char(0x80 | (code & 0x3F));
}

inline bool is_valid(std::string_view text) {
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
        const Char c = read_char(at, end);
        if (c.code == 0xFFFD && c.bytes == 1) return false;
        at += c.bytes;
    }
    return true;
}

}  // namespace fb::text
