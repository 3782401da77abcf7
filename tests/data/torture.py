"""Text that tokenizers disagree about."""

import random

TORTURE = [
    # emoji: joined, skin tones, flags, keycaps, variation selectors, tags
    "👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🇩🇪🇯🇵🇧 1️⃣#️⃣ ❤️❤︎ 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    # scripts
    "日本語のテキスト、カタカナ・ひらがな。「引用」 中文，标点！ 한국어 문장입니다. 𠮷野家 𩸽 ㍿ ㈱",
    "العربية: السلام عليكم ١٢٣٬٤٥٦ — עברית שָׁלוֹם ״ציטוט״ فارسی می‌خواهم ۱۲۳",
    "ภาษาไทยไม่มีช่องว่าง ๑๒๓ ກຳລັງ ខ្មែរ မြန်မာ हिन्दी में क्षत्रिय १२३ தமிழ் ൾ বাংলা ৫৬",
    "Ελληνικά ΆΈΉ ς Привет, мир! Ёлка Українська Ⴀⴀ ქართული հայերեն ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛",
    # composed, decomposed, out of order, excluded from composition, Hangul in parts, singletons
    "é e\u0301 e\u0327\u0301 e\u0301\u0327 a\u0328\u0301\u0323 q\u0307\u0323 \u1e9b\u0323 \u0344\u0327 \u0958 \u2adc",
    "\u1100\u1161\u11a8 \uac00\u11a8 \u1100\uac01 \u1161 \u11a8\u11a8 \uac01\u11a8 \u212b \u2126 \u1f71 \uf900 \u0340",
    "\u0301 leading, \u0f73\u0f71 \u09c7\u09be \u0b47\u0b56 \u1b05\u1b35 \U00011131\U00011127 \U0001d15e \ufb2c",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u036b\u0357",
    # numbers
    "1 12 123 1234 12345 1234567890123 0x1F 3.14159 1,000,000 ½ ² ³ Ⅷ ⑨ 一二三 ๑๒ 12½34 x²+y²=z² ٣٤٥٦",
    # apostrophes and case
    "I'm I'M you'LL he'S she's they'Re we'VE I'D 'tis 's'S ''s 'ſ it'ſ ’s o'clock 'l 'll 'LL 'lL 'r 're 're'",
    # white space
    "a b  c   d    e\tf\t\tg\n\nh\r\ni\rj\r\r\nk \n l \r m\n \n\t\nn\v\fo  ",
    " " * 65 + "x" + "\n" * 33 + "y" + " \n" * 9 + "\r" * 7 + "\t" * 12,
    "\u00a0a\u00a0\u00a0b\u2003c\u2009\u200ad\u3000\u3000e\u1680f\u2028g\u2029h\u0085i\u180ej\u200bk\u2060l\ufeffm\u202fn",
    "   leading", "trailing   ", "\n\nlines\n", "\r", "\r\n", " \n", "\n ", "\u3000", " \u3000x",
    # control characters, private use, unassigned, non-characters, the last code point
    "".join(map(chr, range(0x20))) + "\x7f" + "".join(map(chr, range(0x80, 0xA1))),
    "\ue000\uf8ff\U000f0000\U00100000\U0010ffff\u0378\u0379\u0cdc\U0001fbff\U0003ffff\ufdd0\ufffe\uffff\ufffd\U000e0001",
    # code
    "def f(x: int = 3) -> str:\n\tif x != 0 and y['k'] >= 2**8:  # why?\n\t    return f\"{x:>8}\"\r\n\r\n}}};\n",
    "for(i=0;i<n;++i){a[i]=b[i]&0xFF;}//--==>>||&&!!~^$@`\\ <div class='x'>&nbsp;</div> SELECT * FROM t;",
    "C:\\Users\\x\\n http://a.b/c?d=e&f=%20#g foo_bar fooBar FOO-BAR __init__ ...--- ### $$$ ———",
    # runs
    "a" * 300, "ab" * 150, "-" * 129, "=" * 64 + "\n", "ha" * 40 + "!" * 40, "0" * 100, "é" * 60, "字" * 90,
    "The quick brown fox jumps over the lazy dog. " * 3, "▁▁ a▁b ▁ ▁x", "<|im_start|><s></s><unk><0x0A>",
]  # fmt: skip

_ODD = sorted({c for text in TORTURE for c in text})


def random_strings(seed, count, longest=40):
    """Strings that mix the characters above, letters, spaces and any code points."""
    random_ = random.Random(seed)
    common = [*"aeinorst", *"  \n'0", "the", " and", "ing", "'s", "\r\n"]

    def one():
        kind = random_.random()
        if kind < 0.55:
            return random_.choice(common)
        if kind < 0.95:
            return random_.choice(_ODD)
        c = random_.randrange(0x110000 - 0x800)
        return chr(c if c < 0xD800 else c + 0x800)

    return ["".join(one() for _ in range(random_.randrange(longest))) for _ in range(count)]
