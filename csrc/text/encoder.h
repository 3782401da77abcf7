// Text to tokens and back: what both kinds of byte-pair encoding have in common.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "text/merging.h"
#include "text/pieces.h"
#include "text/vocabulary.h"

namespace fb::text {

struct Span {
    uint32_t begin, end;  // in characters
};

// A part of a text: a token that the caller found there, or plain text to encode (kNone).
struct Part {
    uint32_t token;
    uint32_t begin, end;  // in characters
    bool spaced;          // plain text: as if a space stood before it, which is no character of the text
};

// What encoding needs for itself and keeps for the next text.
struct Scratch {
    Merger merger;
    WordCache cache;
    Pieces pieces, stretch;
    std::string spaced, held, letters;
    std::vector<uint32_t> origin;
};

// Any number of threads may encode at the same time.
class Encoder {
public:
    explicit Encoder(Tokens tokens) : tokens_(std::move(tokens)) {}
    virtual ~Encoder() = default;

    const Tokens& tokens() const { return tokens_; }
    // Appends the tokens of valid UTF-8, whose `parts` follow one another. With `spans`, also the characters of the
    // text that each stands for, whole characters where a token is a part of one. What no token stands for is left out.
    void encode(std::string_view text, const std::vector<Part>& parts, std::vector<uint32_t>& ids,
                std::vector<Span>* spans) const;
    // The bytes that the tokens stand for; numbers beyond the vocabulary are left out.
    virtual std::string decode(const std::vector<int64_t>& ids) const = 0;

protected:
    // What is encoded in the text's place; `origin` stays empty while its characters are the text's, one by one.
    virtual std::string_view normalize(std::string_view text, std::string& held,
                                       std::vector<uint32_t>& origin) const = 0;
    virtual void encode_normal(std::string_view text, Scratch& scratch, Pieces& out) const = 0;

private:
    void encode_plain(std::string_view text, const Part& part, Scratch& scratch, std::vector<uint32_t>& ids,
                      std::vector<Span>* spans) const;

    Tokens tokens_;
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Scratch>> idle_;  // one for each thread that has encoded at the same time
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
struct SentencePieceOptions {
    std::vector<float> scores;  // neighbours are joined whose union is the piece with the highest one
    bool by_merges;             // instead, they are joined by rank in the list of merges
    bool strips_space;          // the space that decoded text begins with was put there by encoding
};
// A character without a token becomes its bytes' tokens, else, a run of such, the unknown token.
std::unique_ptr<Encoder> make_sentencepiece(Tokens tokens, StringReader merges, uint32_t n_merges,
                                            SentencePieceOptions options);

}  // namespace fb::text
