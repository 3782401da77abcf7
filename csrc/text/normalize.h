// Unicode's composed form (NFC), with the original place of each character.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fb::text {

// Whether `to_composed` would change the text.
bool needs_composing(std::string_view text);

// Composes valid UTF-8. `origin` receives, for each character written, the index of the original character that it
// stands for: for a composed one, the first of its parts, as in the `tokenizers` library.
void to_composed(std::string_view text, std::string& composed, std::vector<uint32_t>& origin);

}  // namespace fb::text
