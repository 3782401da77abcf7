// A vocabulary in a mapped GGUF file. Strings are read in place, and only tables of numbers are built.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/pieces.h"

namespace fb::text {

// GGML's token types.
enum TokenType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Reads strings one after another: a 64-bit length, then that many bytes. Throws std::invalid_argument at the end of
// the file.
class StringReader {
public:
    StringReader(const char* at, const char* end) : at_(at), end_(end) {}
    std::string_view next();
    const char* at() const { return at_; }

private:
    const char *at_, *end_;
};

// Tokens by number. Their bytes must stay mapped.
class Tokens {
public:
    Tokens(const char* first, const char* end, uint32_t count, std::vector<uint8_t> types);
    uint32_t size() const { return uint32_t(types_.size()); }
    std::string_view operator[](uint32_t id) const {
        return {first_ + starts_[id], starts_[id + 1] - starts_[id] - kHeader};
    }
    uint8_t type(uint32_t id) const { return types_[id]; }
    size_t longest() const { return longest_; }

private:
    static constexpr uint32_t kHeader = 8;  // bytes of a length field
    const char* first_;
    std::vector<uint32_t> starts_;  // and the start of one more
    std::vector<uint8_t> types_;
    size_t longest_ = 0;
};

// Finds the number of a token by its text. Of tokens with equal text, the last one added counts.
class TokenIndex {
public:
    TokenIndex() = default;  // an empty index, which must not be used
    explicit TokenIndex(const Tokens& tokens);
    void add(uint32_t id) { slots_[slot((*tokens_)[id])] = id; }
    // Returns kNone if there is no such token.
    uint32_t find(std::string_view text) const { return text.size() > tokens_->longest() ? kNone : slots_[slot(text)]; }

private:
    size_t slot(std::string_view text) const;
    const Tokens* tokens_ = nullptr;
    std::vector<uint32_t> slots_;
};

// The number of slots of a hash table for this many entries: a power of two, with at least a third free.
size_t table_size(size_t entries);

}  // namespace fb::text
