// What Unicode says of a character, in the versions that the models' own tokenizers were built with
// (tools/unicode_tables.py).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fb::text {

// Classes of regular expressions, as bits. kOther is none of letter, number and white space: what GPT-2's and its
// successors' expressions write as [^\s\p{L}\p{N}].
enum CharClass : uint8_t { kLetter = 1, kNumber = 2, kPunctuation = 4, kSpace = 8, kOther = 16 };

// One byte for every code point; pages that are equal are kept once.
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
// Whether a character may change, or change what is before it, when text is composed.
const CharTable& composing();

// Replaces a character by its canonical decomposition of one step; false if it has none. `second` is 0 where it becomes
// one other character.
bool decompose(uint32_t whole, uint32_t& first, uint32_t& second);
// The character that two compose to; 0 if they do not.
uint32_t compose(uint32_t first, uint32_t second);

}  // namespace fb::text
