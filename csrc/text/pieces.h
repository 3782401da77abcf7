// The output of an encoder, and its cache of words.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace fb::text {

constexpr uint32_t kNone = 0xFFFFFFFF;

// A token and the bytes of text that it covers. kNone: bytes without a token.
struct Piece {
    uint32_t id;
    uint32_t bytes;
};
using Pieces = std::vector<Piece>;

inline uint64_t hash(std::string_view text) {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
    uint64_t h = text.size() * kOdd;
    for (size_t i = 0; i < text.size(); i += 8) {
        uint64_t chunk = 0;
        std::memcpy(&chunk, text.data() + i, text.size() - i < 8 ? text.size() - i : 8);
        h = (h ^ chunk) * kOdd;
        h ^= h >> 29;
    }
    return h;
}

// The tokens of short words seen before: a table of fixed size in which a later word replaces an earlier one.
class WordCache {
public:
    // Appends the word's tokens. Returns false if it is not in the cache.
    bool find(std::string_view word, Pieces& out) const {
        if (word.size() > kBytes || entries_.empty()) return false;
        const Entry& entry = entries_[hash(word) % kEntries];
        if (entry.size != word.size() || std::memcmp(entry.word, word.data(), word.size())) return false;
        for (int i = 0; i < entry.count; i++) out.push_back({entry.ids[i], entry.bytes[i]});
        return true;
    }
    // Stores the word with the tokens of `out` from `first` on, if it is short.
    void add(std::string_view word, const Pieces& out, size_t first) {
        const size_t count = out.size() - first;
        if (word.size() > kBytes || count > kTokens) return;
        entries_.resize(kEntries);
        Entry& entry = entries_[hash(word) % kEntries];
        entry.size = uint8_t(word.size());
        entry.count = uint8_t(count);
        std::memcpy(entry.word, word.data(), word.size());
        for (size_t i = 0; i < count; i++) {
            entry.ids[i] = out[first + i].id;
            entry.bytes[i] = uint8_t(out[first + i].bytes);
        }
    }

private:
    static constexpr size_t kEntries = 1 << 14, kBytes = 24, kTokens = 6;
    struct Entry {
        char word[kBytes];
        uint8_t size, count, bytes[kTokens];  // size 0: the entry is empty
        uint32_t ids[kTokens];
    };
    std::vector<Entry> entries_;
};

}  // namespace fb::text
