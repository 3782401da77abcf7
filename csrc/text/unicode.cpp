#include "text/unicode.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "text/unicode_tables.h"

namespace fb::text {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

// Hangul syllables consist of a lead, a vowel and optionally a tail, by arithmetic (Unicode, section 3.12).
constexpr uint32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28;

uint64_t key(uint32_t first, uint32_t second) { return uint64_t(first) << 32 | second; }

}  // namespace

template <class Values>
CharTable::CharTable(uint8_t initial, const Values& values) : index_(kCodePoints >> 8) {
    std::vector<uint8_t> all(kCodePoints, initial);
    values([&](uint32_t first, uint32_t last, uint8_t value) {
        for (uint32_t c = first; c <= last; c++) all[c] |= value;
    });
    std::map<std::vector<uint8_t>, uint16_t> known;
    for (size_t page = 0; page < index_.size(); page++) {
        const auto begin = all.begin() + long(page << 8);
        const auto [found, isnew] = known.try_emplace(std::vector<uint8_t>(begin, begin + 256), uint16_t(known.size()));
        if (isnew) pages_.insert(pages_.end(), begin, begin + 256);
        index_[page] = found->second;
    }
}

const CharTable& categories() {
    static_assert(1 << Lu == kUpperCase && 1 << Ll == kLowerCase && 1 << Lt == kTitleCase && 1 << Lm == kModifier);
    static_assert(1 << Lo == kCaseless && 1 << M == kMark && 1 << Nd == kDigit && 1 << No == kOtherNumber);
    static_assert(1 << P == kPunctuation && 1 << S == kSymbol && 1 << Z == kSpace);
    static const CharTable table(0, [](const auto& set) {
        for (const CharRange& range : kCategories) set(range.first, range.last, range.value);
    });
    return table;
}

const CharTable& combining_classes() {
    static const CharTable table(0, [](const auto& set) {
        for (const CharRange& range : kCombining) set(range.first, range.last, range.value);
    });
    return table;
}

const CharTable& composing() {
    static const CharTable table(0, [](const auto& set) {
        for (const CharRange& range : kCombining) set(range.first, range.last, 1);
        for (const Decomposition& d : kDecompositions) {
            if (d.composes) set(d.second, d.second, 1);
            else set(d.whole, d.whole, 1);
        }
        set(kVowel, kVowel + kVowels - 1, 1);
        set(kTail + 1, kTail + kTails - 1, 1);
    });
    return table;
}

bool decompose(uint32_t whole, uint32_t& first, uint32_t& second) {
    if (const uint32_t s = whole - kSyllable; s < kLeads * kVowels * kTails) {
        const uint32_t tail = s % kTails, block = s / kTails;
        first = tail ? whole - tail : kLead + block / kVowels;
        second = tail ? kTail + tail : kVowel + block % kVowels;
        return true;
    }
    const auto* found = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), whole,
                                         [](const Decomposition& d, uint32_t c) { return d.whole < c; });
    if (found == std::end(kDecompositions) || found->whole != whole) return false;
    first = found->first;
    second = found->second;
    return true;
}

uint32_t compose(uint32_t first, uint32_t second) {
    const uint32_t lead = first - kLead, vowel = second - kVowel, tail = second - kTail;
    if (lead < kLeads && vowel < kVowels) return kSyllable + (lead * kVowels + vowel) * kTails;
    const uint32_t s = first - kSyllable;
    if (s < kLeads * kVowels * kTails && s % kTails == 0 && tail > 0 && tail < kTails) return first + tail;
    static const std::unordered_map<uint64_t, uint32_t> pairs = [] {
        std::unordered_map<uint64_t, uint32_t> made;
        for (const Decomposition& d : kDecompositions)
            if (d.composes) made.emplace(key(d.first, d.second), d.whole);
        return made;
    }();
    const auto found = pairs.find(key(first, second));
    return found == pairs.end() ? 0 : found->second;
}

}  // namespace fb::text
