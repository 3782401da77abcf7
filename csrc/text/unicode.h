// Unicode properties of characters, in the versions with which the models' tokenizers were built
// (tools/unicode_tables.py).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fb::text {

// Classes of regular expressions, as bits. kOther is everything except letters, numbers and white space:
// [^\s\p{L}\p{N}] in the expressions of GPT-2 and its successors. kUpper is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and kLower
// is
// [\p{Ll}\p{Lm}\p{Lo}\p{M}]: letters without case and marks are both.
enum CharClass : uint8_t {
    kLetter = 1,
    kNumber = 2,
    kPunctuation = 4,
    kSpace = 8,
    kOther = 16,
    kUpper = 32,
    kLower = 64
};

// One byte for every code point. Equal pages are stored once.
class CharTable {
public:
    // `values` calls its argument with (first, last, value) of ranges, whose values are or-ed into the table.
    template <class Values>
    CharTable(uint8_t initial, const Values& values);
    uint8_t operator[](uint32_t c) const { return pages_[size_t(index_[c >> 8]) << 8 | (c & 0xFF)]; }

private:
    std::vector<uint16_t> index_;
    std::vector<uint8_t> pages_;
};

const CharTable& char_classes();
const CharTable& combining_classes();
// Whether composing a text may change a character, or the one before it.
const CharTable& composing();

// Replaces a character by one step of its canonical decomposition; false if it has none. `second` is 0 if it becomes a
// single character.
bool decompose(uint32_t whole, uint32_t& first, uint32_t& second);
// The character that two compose to, or 0 if they do not.
uint32_t compose(uint32_t first, uint32_t second);

}  // namespace fb::text
