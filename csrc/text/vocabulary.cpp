#include "text/vocabulary.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace fb::text {

std::string_view StringReader::next() {
    uint64_t length;
    if (end_ - at_ < long(sizeof length))
        throw std::invalid_argument("a list of strings runs past the end of the file");
    std::memcpy(&length, at_, sizeof length);
    at_ += sizeof length;
    if (length > uint64_t(end_ - at_)) throw std::invalid_argument("a string runs past the end of the file");
    const std::string_view text(at_, length);
    at_ += length;
    return text;
}

Tokens::Tokens(const char* first, const char* end, uint32_t count, std::vector<uint8_t> types)
    : first_(first + kHeader), types_(std::move(types)) {
    if (types_.size() != count) throw std::invalid_argument("tokens and their types differ in number");
    StringReader reader(first, end);
    starts_.reserve(count + 1);
    for (uint32_t i = 0; i <= count; i++) {
        const size_t start = size_t(reader.at() - first);
        if (start > 0xFFFFFFFF) throw std::invalid_argument("its tokens take over 4 GB");
        starts_.push_back(uint32_t(start));
        if (i < count) longest_ = std::max(longest_, reader.next().size());
    }
}

TokenIndex::TokenIndex(const Tokens& tokens) : tokens_(&tokens), slots_(table_size(tokens.size()), kNone) {}

size_t TokenIndex::slot(std::string_view text) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash(text) & mask;
    while (slots_[at] != kNone && (*tokens_)[slots_[at]] != text) at = (at + 1) & mask;
    return at;
}

size_t table_size(size_t entries) {
    size_t size = 16;
    while (size * 2 < entries * 3) size *= 2;
    return size;
}

}  // namespace fb::text
