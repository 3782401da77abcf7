// Unicode properties of characters, in the versions with which the models' tokenizers were built
// (tools/unicode_tables.py).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fb::text {

// Sets of Unicode categories, as bits. A character is in exactly one category.
using CharSet = uint16_t;
constexpr CharSet kUnassigned = 1 << 0, kUpperCase = 1 << 1, kLowerCase = 1 << 2, kTitleCase = 1 << 3,
                  kModifier = 1 << 4, kCaseless = 1 << 5, kMark = 1 << 6, kDigit = 1 << 7, kOtherNumber = 1 << 8,
                  kPunctuation = 1 << 9, kSymbol = 1 << 10, kSpace = 1 << 11, kAll = (1 << 12) - 1;
constexpr CharSet kLetter = kUpperCase | kLowerCase | kTitleCase | kModifier | kCaseless;
constexpr CharSet kNumber = kDigit | kOtherNumber;
// [^\s\p{L}\p{N}] in the expressions of GPT-2 and its successors.
constexpr CharSet kOther = kAll & ~(kLetter | kNumber | kSpace);
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}]: letters without case and marks are both.
constexpr CharSet kUpper = kUpperCase | kTitleCase | kModifier | kCaseless | kMark;
constexpr CharSet kLower = kLowerCase | kModifier | kCaseless | kMark;

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

// The category of each character, as the number of its bit.
const CharTable& categories();
inline CharSet category(uint32_t c) {
    static const CharTable& table = categories();
    return CharSet(1 << table[c]);
}
const CharTable& combining_classes();
// Whether composing a text may change a character, or the one before it.
const CharTable& composing();

// Replaces a character by one step of its canonical decomposition; false if it has none. `second` is 0 if it becomes a
// single character.
bool decompose(uint32_t whole, uint32_t& first, uint32_t& second);
// The character that two compose to, or 0 if they do not.
uint32_t compose(uint32_t first, uint32_t second);

}  // namespace fb::text
