"""Writes metal/tokenizer/testdata/characters.json: for each class of characters
and each rewriting of them how many characters it has and a SHA-256 of which,
as the parts of Hugging Face's tokenizers know them.

    V/bin/python test/oracle/goldens/tokenizer/characters.py metal/tokenizer/testdata/characters.json
"""

import hashlib
import json
import sys

from tokenizers import Regex, normalizers as N, pre_tokenizers as P

ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def cut(pre):
    """The characters that do not stay with the letters around them."""
    text = "".join("a" + c for c in ALL) + "a"
    kept = bytearray(len(text))
    for _, (start, end) in pre.pre_tokenize_str(text):
        if end - start > 1:
            kept[start:end] = b"\1" * (end - start)
    return {c for i, c in enumerate(ALL) if not kept[2 * i + 1]}


def matched(expr):
    """The characters that an expression matches."""
    text = "".join(ALL)
    left = bytearray(len(text))
    for _, (start, end) in P.Split(Regex(expr), "removed").pre_tokenize_str(text):
        left[start:end] = b"\1" * (end - start)
    return {c for i, c in enumerate(ALL) if not left[i]}


def rewritten(normalizer):
    """What becomes of each character, where that is something else."""
    between = "†"  # which nothing becomes
    most = [c for c in ALL if c != between]
    out = normalizer.normalize_str(between.join(most)).split(between)
    return {c: new for c, new in zip(most, out, strict=True) if c != new}


def digest(of):
    """Classes and rewritings alike: each character, what becomes of it, a zero."""
    h = hashlib.sha256()
    for c in sorted(of):
        h.update(c.encode() + b"=" + (of[c].encode() if isinstance(of, dict) else b"") + b"\0")
    return {"count": len(of), "sha256": h.hexdigest()}


def bert(**on):
    return N.BertNormalizer(**{k: on.get(k, False) for k in ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")})


def main(path):
    out = {}
    for name, pre in {"space": P.WhitespaceSplit(), "numeric": P.Digits(True), "punctuation": P.Punctuation()}.items():
        out[name] = digest(cut(pre))
    word = P.Whitespace()
    out["word"] = digest({c for c in ALL} - cut(word))
    for name in ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "Nd", "Han", "Hiragana", "Katakana", "Hangul"):
        out[f"\\p{{{name}}}"] = digest(matched(f"\\p{{{name}}}"))
    for expr in (r"\s", r"\w", r"\d", r"[\w]", "[[:punct:]]", "(?i:k)", "(?i:s)"):
        out[expr] = digest(matched(expr))
    for name, n in {"NFC": N.NFC(), "NFD": N.NFD(), "NFKC": N.NFKC(), "NFKD": N.NFKD(), "lower": N.Lowercase(), "nmt": N.Nmt(), "accents": N.StripAccents(),
                    "bert clean": bert(clean_text=True), "bert accents": bert(strip_accents=True), "bert chinese": bert(handle_chinese_chars=True)}.items():
        out[name] = digest(rewritten(n))
    with open(path, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")


main(sys.argv[1])
