// Finds names in a text, in one pass for any number of names.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fb::text {

// An Aho-Corasick automaton over the reversed names. A pass from the end of the text finds, at each place, the longest
// name that begins there.
class NameFinder {
public:
    struct Hit {
        uint32_t name, begin, end;  // begin and end in characters
    };

    // The names must be valid UTF-8 and not empty.
    explicit NameFinder(const std::vector<std::string>& names);
    // Returns the longest name at each place where names begin, in text order. Hits may overlap.
    std::vector<Hit> find(std::string_view text) const;

private:
    struct Node {
        uint32_t child, sibling;  // 0: none
        uint32_t shorter;         // the node of the longest proper suffix
        uint32_t name;            // the longest name that ends here; kNone
        char byte;
    };
    uint32_t child(uint32_t node, char byte) const;
    uint32_t step(uint32_t node, char byte) const;

    std::vector<Node> nodes_{Node{0, 0, 0, 0xFFFFFFFF, 0}};
    std::array<uint32_t, 256> roots_{};  // the first node's children
    std::vector<uint32_t> lengths_;      // of the names, in characters
};

}  // namespace fb::text
