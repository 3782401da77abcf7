// Names spelled in a text, found in one pass however many names there are.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fb::text {

// An Aho-Corasick automaton over the names read backwards, so that a pass from the end of the text knows, at each
// place, the longest name that begins there.
class NameFinder {
public:
    struct Hit {
        uint32_t name, begin, end;  // the place in characters
    };

    // Valid UTF-8, none of them empty.
    explicit NameFinder(const std::vector<std::string>& names);
    // At each place where names begin, the longest; in order of the text. They may overlap.
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
