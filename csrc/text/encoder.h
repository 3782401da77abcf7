// Text to tokens and back: what both kinds of byte-pair encoding have in common.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/pieces.h"
#include "text/vocabulary.h"

namespace fb::text {

struct Span {
    uint32_t begin, end;  // in characters
};

class Encoder {
public:
    explicit Encoder(Tokens tokens) : tokens_(std::move(tokens)) {}
    virtual ~Encoder() = default;

    const Tokens& tokens() const { return tokens_; }
    // The tokens of valid UTF-8. With `spans`, also the characters of the text that each stands for, whole characters
    // where a token is a part of one. What no token stands for is left out.
    std::vector<uint32_t> encode(std::string_view text, std::vector<Span>* spans = nullptr);
    // The bytes that the tokens stand for; numbers beyond the vocabulary are left out.
    virtual std::string decode(const std::vector<int64_t>& ids) const = 0;

protected:
    // What is encoded in the text's place; `origin` stays empty while its characters are the text's, one by one.
    virtual std::string_view normalize(std::string_view text, std::string& held, std::vector<uint32_t>& origin) = 0;
    virtual void encode_normal(std::string_view text, Pieces& out) = 0;

private:
    Tokens tokens_;
};

// `names[i]` is the expression that cuts i-th. Throws std::invalid_argument for a vocabulary or merges that cannot be.
struct ByteLevelOptions {
    std::vector<std::string> cuts;
    bool composes;     // characters are composed first
    bool whole_words;  // a word that is a token becomes it, whatever the merges say
};
// Bytes as characters that can be seen, joined by rank. `merges`: so many strings "left right".
std::unique_ptr<Encoder> make_byte_level(Tokens tokens, StringReader merges, uint32_t n_merges,
                                         const ByteLevelOptions& options);
// Neighbours are joined whose union is the piece with the highest score. A character without a token becomes its bytes'
// tokens, else, a run of such, the unknown token.
std::unique_ptr<Encoder> make_sentencepiece(Tokens tokens, std::vector<float> scores);

}  // namespace fb::text
