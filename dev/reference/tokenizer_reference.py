# /// script
# dependencies = ["tiktoken", "numpy", "regex"]
# ///
"""The tokenizer against tiktoken.

    tokenizer_reference.py write --vocab DIR          make the fixtures in dev/test/data/ again
    tokenizer_reference.py check --vocab DIR FILE...  ids of data/tokenize equal tiktoken's on these UTF-8 files?
    tokenizer_reference.py speed --vocab DIR FILE...  both single-threaded, in turn; prints the ratio

DIR holds GPT-2's encoder.json and vocab.bpe. Fixtures: torture.txt (a text that has everything that ever went wrong in
splitting text into words), tiny/ (a byte-pair vocabulary of 700 tokens learnt from it, in both file formats), and the
ids that tiktoken gives torture.txt with the tiny and with GPT-2's vocabulary (torture.*.ids, little-endian uint16).
"""
import argparse, base64, json, os, random, statistics, subprocess, sys, tempfile, time

import numpy as np
import regex
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIXTURES = os.path.join(ROOT, "dev", "test", "data")
# As tiktoken_ext/openai_public.py writes the expression that GPT-2's encoder.py published.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
END = "<|endoftext|>"


def encoding(folder):
    ranks = data_gym_to_mergeable_bpe_ranks(
        vocab_bpe_file=os.path.join(folder, "vocab.bpe"), encoder_json_file=os.path.join(folder, "encoder.json"))
    return tiktoken.Encoding(os.path.basename(folder), pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={END: len(ranks)})


def torture_text():
    random.seed(20240520)
    lines = [
        "I'm, you're, he's, we've, they'll, I'd, don't; I'M YOU'RE HE'S; 'tis 'twas 's't're 've'm'll'd 'll've",
        "''s '''t 'l 'v 'r 're'e 'rex 'lle 'star ' s \u2019s it\u2019s x's\u00e9 x'\u00e9 \u00e9's '\n's ' 's  's",
        "  two  spaces   three    four\ttab\t\ttabs \t mixed\t \tend  ", "trailing \t ", " leading", "", "", "   ", "\t\t",
        "CR LF\r\n\r\nCR\rCR CR\r\r NEL\u0085LS\u2028PS\u2029 VT\x0bFF\x0c end",
        "all white space: " + "x".join("\t\n\x0b\x0c\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
                                       "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"),
        "twice: " + "x".join(c * 2 for c in "\t\r \u0085\u00a0\u1680\u2003\u2028\u202f\u205f\u3000") + " \u00a0x\u00a0 x",
        "no white space: " + "x".join("\x1c\x1d\x1e\x1f\u180e\u200b\u200c\u200d\u2060\ufeff\x00\x01\x7f\u00ad"),
        "\x00\x00NUL \x00 a\x00b", "digits 0 12 345 6789 1,234.56 1e-9 0x1F a1b2 1a2b 3rd",
        "numbers \u00b2\u00b3\u00bd \u2167\u2168 \u2460\u2461 \u0661\u0662\u0663 \u0967\u0968 \uff11\uff12 \U0001d7d8 \u3007"
        " \u96f6 \u4e00 \U00010107 x\u00b2 2\u00b2 \u00bdx",
        "English naive na\u00efve caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m stra\u00dfe \u1e9e \ufb01 \u0149 \u01c5",
        "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442, \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac;"
        " \u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u064e\u064f \u0939\u093f\u0928\u094d\u0926\u0940"
        " \u0e44\u0e17\u0e22 \u1797\u17b6\u179f\u17b6 \u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8 \u13e3\u13b3\u13a9 \u16a0\u16a1",
        "\u4e2d\u6587\uff0c\u6ca1\u6709\u7a7a\u683c\u3002\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\ud55c\uad6d\uc5b4"
        "\u3000\u5168\u89d2\uff01 \u20bb7 \U00020bb7\U0002a6d6",
        "emoji \U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea"
        " \u2764\ufe0f #\ufe0f\u20e3 \U0001f600\U0001f600\U0001f600 a\U0001f600b",
        "marks e\u0301\u0302\u0303 \u0301 \u093f \u0e31 Z\u0351\u036b\u0343a\u0329\u034el\u0321\u0349g\u0337\u0335o",
        "new letters \U0001e4d0\U0001e4e0 \U00031350\U000323af \U00011f04\U00011f12 \U000105c0\U000105d0 \U0001e5d0 \u1c89\u1c8a"
        " \ua7cb \U00016d40 \U0001e030 \U0002ebf0; new numbers \U0001e4f0 \U00011f50\U00011f51 \U00010d40 \U0001ccf0; unassigned"
        " \u0378 \U0001fbff \U000e0001 \U0010ffff \ufffe \ufffd \ue000 \U000f0000",
        f"special {END} <|endoftext|><|endoftext|> <|im_start|> <| endoftext |>",
        "code: for (int i = 0; i < n; i++) { a[i] += b[i]*c[i]; }  // x->y != z::w && !q || ~r ^ s",
        "https://example.org/a_b-c?d=%20e&f=g#h  user@example.com  C:\\path\\file  $HOME/${x} `ls` \"quoted\" (a) [b] {c}",
        "a" * 300, "A" * 49 + " " + "B" * 48 + " " + "c" * 47, "=" * 120, " " * 200 + "x", "\t" * 33 + "y", "-" * 3 + ">" * 7,
        "ab" * 150, "9" * 130, "\u4e2d" * 60, "\U0001f600" * 25, "antidisestablishmentarianism" * 4, "!?" * 40,
    ]
    # Neighbours of every kind, at random: one or two characters of each class, in all orders.
    alphabet = ["a", "s", "t", "ll", "re", "ve", "e", "Z", "\u00e9", "\u4e2d", "\U00020bb7", "1", "\u00b2", "\u0663", "'", "'",
                "!", "\u2019", "\U0001f600", "\u0301", "\x00", "\u200b", " ", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u0085"]
    lines.append("".join(random.choice(alphabet) for _ in range(6000)))
    # Characters from everywhere in Unicode.
    points = [p for p in range(0x20, 0x110000) if not 0xD800 <= p < 0xE000]
    lines.append("".join(chr(random.choice(points)) + random.choice(["", " ", "a", "1"]) for _ in range(500)))
    points = [p for p in range(0x20, 0x3000)]
    lines.append("".join(chr(random.choice(points)) + random.choice(["", "", " ", "'s"]) for _ in range(2500)))
    return "\n".join(lines) + "\n \n  \t "


def train(text, merges):
    """Byte-pair merges by the textbook: the most frequent pair first. Returns the merged tokens in order."""
    words = {}
    for piece in regex.findall(PATTERN.replace("++", "+"), text):
        parts = tuple(bytes([b]) for b in piece.encode())
        words[parts] = words.get(parts, 0) + 1
    learnt = []
    while len(learnt) < merges:
        pairs = {}
        for parts, count in words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] = pairs.get(pair, 0) + count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        learnt.append(best)
        joined = {}
        for parts, count in words.items():
            out, i = [], 0
            while i < len(parts):
                if parts[i:i + 2] == best:
                    out.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    out.append(parts[i])
                    i += 1
            joined[tuple(out)] = joined.get(tuple(out), 0) + count
        words = joined
    return learnt


def byte_names():
    """OpenAI's table: byte -> the character that shows it, and the order of the first 256 ids."""
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    names, n = {b: chr(b) for b in printable}, 0
    order = list(printable)
    for b in range(256):
        if b not in names:
            names[b] = chr(256 + n)
            order.append(b)
            n += 1
    return names, order


def write_tiny(folder, text):
    names, order = byte_names()
    show = lambda token: "".join(names[b] for b in token)
    merges = train(text, 700 - 257)
    encoder = {names[b]: i for i, b in enumerate(order)}
    tokens = [bytes([b]) for b in order]
    for left, right in merges:
        encoder[show(left + right)] = len(encoder)
        tokens.append(left + right)
    encoder[END] = len(encoder)
    assert len(encoder) == 700
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "encoder.json"), "w", newline="\n") as f:
        json.dump(encoder, f, indent=0)  # ASCII with \u escapes, as OpenAI's
        f.write("\n")
    with open(os.path.join(folder, "vocab.bpe"), "w", encoding="utf-8", newline="\n") as f:
        f.write("#version: 0.2\n" + "".join(f"{show(a)} {show(b)}\n" for a, b in merges))
    with open(os.path.join(folder, "tiny.tiktoken"), "w", newline="\n") as f:
        f.writelines(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def write(args):
    text = torture_text()
    os.makedirs(FIXTURES, exist_ok=True)
    with open(os.path.join(FIXTURES, "torture.txt"), "wb") as f:
        f.write(text.encode())
    tiny = os.path.join(FIXTURES, "tiny")
    write_tiny(tiny, text)
    for name, folder in (("tiny", tiny), ("gpt2", args.vocab)):
        ids = encoding(folder).encode_ordinary(text)
        np.array(ids, dtype="<u2").tofile(os.path.join(FIXTURES, f"torture.{name}.ids"))
        print(f"torture.{name}.ids: {len(ids)} ids for {len(text.encode())} bytes")


def run_tokenize(args, path, folder):
    """ids of data/tokenize without the leading end-of-text, and the seconds the whole program took."""
    started = time.perf_counter()
    subprocess.run([args.tokenize, "--tokenizer", "gpt2", "--vocab", args.vocab, "--format", "text", "--val-fraction", "0",
                    "--threads", "1", "--out", os.path.join(folder, "x"), path], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    return np.fromfile(os.path.join(folder, "x_train_000000.bin"), dtype="<u2", offset=1024)[1:], seconds


def check(args, speed=False):
    enc, failed = encoding(args.vocab), 0
    for path in args.files:
        text = open(path, encoding="utf-8", newline="").read()
        ratios = []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(5 if speed else 1):
                started = time.perf_counter()
                expected = np.array(enc.encode_ordinary(text))
                theirs = time.perf_counter() - started
                ours_ids, ours = run_tokenize(args, path, folder)
                ratios.append(theirs / ours)
        same = len(ours_ids) == len(expected) and (ours_ids == expected).all()
        failed += not same
        print(f"{path}: {len(expected)} ids, {'equal' if same else 'DIFFERENT'}", end="")
        print(f"; {statistics.median(ratios):.2f} times tiktoken's speed ({min(ratios):.2f} to {max(ratios):.2f}), "
              "our whole program against its encode_ordinary() alone" if speed else "")
    return failed != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "check", "speed"])
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--tokenize", default=os.path.join(ROOT, "data", "tokenize"))
    parser.add_argument("files", nargs="*")
    args = parser.parse_intermixed_args()
    if args.command == "write":
        return write(args)
    return check(args, args.command == "speed")


if __name__ == "__main__":
    sys.exit(main())
