"""Texts for comparing tokenizers: scripts, emoji, code, white space, long runs,
random characters and broken UTF-8. All are bytes; the same seed gives the same
texts. The sentences are our own."""

import random

SENTENCES = [
    "The agent measured 49,152 bytes and wasn't surprised; they'll ask again at 7:30 PM.",
    "I'm sure you've seen it's JOHN'S — he'd say WE'LL, they'Re, I'M, Don'T.",
    "Der Rechner zählt Äpfel, Öl und süße Straßen; 3,5 Prozent genügen.",
    "L'élève a mangé un œuf à l'ombre, n'est-ce pas ? Ça va !",
    "El niño pidió una piñata en marzo: ¿cuánto cuesta?",
    "Ładny źrebak żuje gęstą trawę koło młyna.",
    "Přílišně žluťoučký kůň stál u řeky.",
    "Büyük şehirde ılık bir güz İstanbul'da başladı.",
    "Máy tính đếm những con số rất nhanh, phải không?",
    "Сервер считает быстро, а память кончается: 12 гигабайт.",
    "Привіт, їжаче! Ґанок і щастя.",
    "Η μνήμη τελειώνει πριν από τον χρόνο.",
    "החתול ישן על המחשב החם שָׁלוֹם",
    "الذاكرة تنتهي قبل الوقت، والعدد ١٢٣٤ كبير.",
    "حافظه پیش از زمان تمام می‌شود، عدد ۱۲۳۴ بزرگ است.",
    "मशीन की स्मृति समाप्त हो गई है, संख्या १२३ बड़ी है।",
    "যন্ত্রের স্মৃতি শেষ হয়ে গেছে।",
    "இயந்திரத்தின் நினைவகம் முடிந்தது.",
    "యంత్రం జ్ఞాపకశక్తి అయిపోయింది.",
    "ಯಂತ್ರದ ನೆನಪು ಮುಗಿದಿದೆ.",
    "മെഷീന്റെ ഓർമ്മ തീർന്നു.",
    "หน่วยความจำของเครื่องหมดแล้ว ๑๒๓",
    "ຄວາມຈຳຂອງເຄື່ອງໝົດແລ້ວ",
    "စက်၏မှတ်ဉာဏ်ကုန်သွားပြီ။",
    "មេម៉ូរីរបស់ម៉ាស៊ីនអស់ហើយ",
    "მანქანის მეხსიერება ამოიწურა.",
    "Մեքենայի հիշողությունը սպառվեց։",
    "机器的内存已经用完了,还剩下三点五个字节。",
    "機器的記憶體用完了,剩下３２個位元組。",
    "メモリが足りません。カタカナとひらがな、ﾊﾝｶｸも。",
    "기계의 메모리가 다 떨어졌습니다. 한글 자모 ㄱㄴㄷ",
    "የማሽኑ ትውስታ አልቋል።",
    "ᎣᏏᏲ ᎤᏬᏂ ᏣᎳᎩ",
    "ᐃᓄᒃᑎᑐᑦ ᖃᓄᐃᑉᐱᑦ",
    "Zalgo: h̷̢̛e̵l̶l̷o̸ wörld, e\u0301 vs é, A\u030a vs Å, Å (Angstrom), \ufb01 \ufb05",
    "½ ⅓ ² ³ ① Ⅳ ⅷ ㊿ ५ ۵ 𝟘𝟙 𐄡 一二三",
    "𝓬𝓾𝓻𝓼𝓲𝓿𝓮 𝔣𝔯𝔞𝔨𝔱𝔲𝔯 ᴀʙᴄ ⓐⓑⓒ",
    "😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ ❤️ 🫠 🪿",
    "price: €3.50 £2 ¥100 ₹5 ₿1 — “quoted” ‘single’ …",
    "marks: e\u0eba\u0323 a\u08d3\u0301 q\u0307\u0323 \u1112\u1161\u11ab \uac00\u11a8 \u0958 \u2126 \u212b " + "o" + "\u0323\u0302" * 20,
    "tabs\tand\u00a0no-break\u2003em\u2009thin\u3000wide\u200bzero\u2028line\u2029para\u0085nel\ufeffbom",
    "it'ſ they'LL'd''s 'S 'T ''' 'ſ 'RE'Ve x'll'm'd",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|> x <|im_start|ed>|im_end|><|im_<|im_end|>",
    "a<repo_name>b<file_sep>c<empty_output> <reponame>",
    "def f(x: int) -> int:\n    if x < 0:\n\t\treturn -x  # abs\r\n    return x\n\n\nprint(f(-3))\n",
    "func (s *Server) Close() error { return fmt.Errorf(\"close %q: %w\", s.name, err) }\n",
    "for (int i = 0; i < 1000000; ++i) { a[i] = b[i] * 3.14159e-10; }\r\n\r\n",
    "SELECT * FROM macs WHERE memory>=192 AND name LIKE '%studio%';",
    "{\"a\": [1, 2.5, -3e8, null, true], \"b\": \"\\u00e9\\n\"}",
    "https://example.com/a/b?c=d&e=%20f#g user@example.org +49-30-1234567",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- item\n  - nested\n\n```sh\nmake -j8\n```",
    "x^2 + y_1 \\leq \\frac{a}{b} $$\\sum_{i=0}^{n}$$ ∀x∈ℝ: ⌈x⌉ ≥ x ∧ ¬∃y",
    "CamelCaseWord snake_case_word kebab-case-word SCREAMING_SNAKE v1.2.3-rc4+build5",
    "    leading, trailing    ",
    "\n\n\n",
    " ",
    "",
]

# Added tokens of the tokenizers that are compared, and what is nearly one.
TOKENS = ["<mask>", "<s>", "</s>", "[gap]", "Day", "day", "the agent", "<both>", "é!", "É!", "  ", "one", "<unk>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<pad>",
          "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<bos>", "<eos>", "<0x0A>", "<EOT>", "▁", "▁x", "##s", "</w>", "<think>",
          "<fim_prefix>", "\n\n\n", "<｜begin▁of▁sentence｜>", "<tool_call>", "<start_of_turn>"]

SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t ", "\u00a0", "\u3000", "\u2028", "\u0085", "\v", "\f"]
GLUE = ["", "", "", "'", "'s", "'LL", "-", "_", "...", "!!", "(", "\u0301", "\u200d", "\ufe0f"]


def words(rng):
    return rng.choice(SENTENCES).split()


def mixture(rng):
    out = []
    for _ in range(rng.randint(1, 12)):
        pick = words(rng) or ["x"]
        out.append(rng.choice(pick))
        out.append(rng.choice(SPACES) if rng.random() < 0.6 else rng.choice(GLUE))
    return "".join(out)


def with_tokens(rng):
    out = []
    for _ in range(rng.randint(1, 8)):
        out.append(rng.choice(TOKENS) if rng.random() < 0.6 else rng.choice(words(rng) or ["x"]))
        if rng.random() < 0.5:
            out.append(rng.choice(SPACES))
    return "".join(out)


# What normal forms, clusters and syllables are made of.
MARKS = ("\u0301\u0308\u0327\u0323\u0330\u0338\u0345\u0653\u0654\u093c\u094d\u09cd\u0b57\u0ba2\u0bd7\u0e33\u1039\u200c\u200d\u20dd\u3099\u309a\ufe0f\u0eba"
         "\u08d3\u1ab0\U0001d165\U0001e8d0\u0600\u061c\u200b\u00ad\ufeff")
BASES = "aAeEoOsSkKiIıİſßẞﬁ½①Ⅳ™℃ÅÅｱﾊ゚カ中가한각क്കကខ©®‼ℹ😀🏽🇩.\r\n \t\u3000…Σςǅǆΐΰẖŉ"


def composed(rng):
    return "".join(rng.choice(BASES) if rng.random() < 0.5 else rng.choice(MARKS) for _ in range(rng.randint(1, 14)))


def random_characters(rng):
    blocks = [(0, 0x7F), (0x80, 0x24F), (0x250, 0x52F), (0x530, 0x1FFF), (0x2000, 0x2BFF), (0x2E80, 0x9FFF),
              (0xA000, 0xD7FF), (0xF900, 0xFFFD), (0x10000, 0x1FFFF), (0x20000, 0x323AF), (0xE0000, 0x10FFFF)]
    low, high = rng.choice(blocks)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 24)))


def numbers(rng):
    digits = rng.choice(["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "½²③Ⅳ", "0123456789.,eE+-xabcdef "])
    return "".join(rng.choice(digits) for _ in range(rng.randint(1, 20)))


def long_run(rng):
    unit = rng.choice(["a", "ab", " ", "\n", " \n", "é", "中", "😀", "=", "-", "0", "aA", "\t", "the", "'", "'s", "\r\n", "ha"])
    return unit * rng.randint(20, 600)


def broken(rng):
    raw = bytearray(mixture(rng).encode())
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(raw))
        what = rng.random()
        if what < 0.4:
            raw[at:at] = bytes([rng.randint(0x80, 0xFF)])
        elif what < 0.7 and raw:
            del raw[at:at + rng.randint(1, 3)]
        else:
            raw[at:at] = rng.choice([b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98", b"\xe2\x82", b"\xff\xfe", b"\xe0\x80\x80", b"\xf1\x80"])
    return bytes(raw)


def make(count, seed):
    """The fixed sentences, then count random texts."""
    rng = random.Random(seed)
    out = [s.encode() for s in SENTENCES]
    kinds = [mixture, mixture, mixture, random_characters, numbers, long_run, broken, with_tokens, composed]
    for _ in range(count):
        text = rng.choice(kinds)(rng)
        out.append(text if isinstance(text, bytes) else text.encode())
    return out
