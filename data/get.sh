#!/bin/sh
# get.sh: fetches a data set (or GPT-2's vocabulary) and checks what it got. data/README.md goes on from there.
#
#   data/get.sh tinyshakespeare [URL|FILE]    1.1 MB of text            -> data/tinyshakespeare.txt
#   data/get.sh tinystories     [URL|FILE]    2.2 GB, 2.7 million texts -> data/tinystories.jsonl
#   data/get.sh fineweb         [URL|FILE]    200 MB a shard, GPT-2 ids -> data/fineweb_val_000000.bin,
#                                             data/fineweb_train_000001.bin ... as many as SHARDS=n says (default 1)
#   data/get.sh fineweb100B     [URL|FILE]    the same of the sample of 100 billion tokens, 1030 shards
#   data/get.sh hellaswag       [URL|FILE]    10042 questions           -> data/hellaswag_val.jsonl
#   data/get.sh gpt2-vocab      [URL|FOLDER]  1.5 MB                    -> data/gpt2/encoder.json, data/gpt2/vocab.bpe
#
# URL or FILE replaces the public address: a mirror, or a copy at hand. OUT=folder puts the results elsewhere.
# Needs curl or wget for a URL, nothing for a file. A file has its final name only when it is whole and right.
set -u
out=${OUT:-$(dirname "$0")}
name=${1:-}
source=${2:-}

stop() { echo "error: $*" >&2; exit 1; }

# fetch SOURCE TARGET: a copy of the file or URL at TARGET.part.
fetch() {
    mkdir -p "$(dirname "$2")" || exit 1
    case $1 in
        http://* | https://* | ftp://* | file://*)
            echo "fetching $1"
            if command -v curl >/dev/null 2>&1; then
                curl --fail --location --retry 3 --continue-at - --output "$2.part" "$1" || stop "curl cannot fetch $1"
            elif command -v wget >/dev/null 2>&1; then
                wget --tries=3 --continue --output-document="$2.part" "$1" || stop "wget cannot fetch $1"
            else
                stop "fetching $1 needs curl or wget; with neither, fetch it elsewhere and name the file: data/get.sh $name FILE"
            fi ;;
        *)
            [ -f "$1" ] || stop "'$1' is neither a file nor a URL"
            cat "$1" >"$2.part" || exit 1 ;;
    esac
    [ -s "$2.part" ] || { rm -f "$2.part"; stop "'$1' is empty"; }
    case $(head -c 15 "$2.part" | tr -d '\000' | tr '[:upper:]' '[:lower:]') in
        '<!doctype html'* | '<html'*) rm -f "$2.part"; stop "'$1' gave a web page, not the data (a login or a moved address?)" ;;
        'version https:'*) rm -f "$2.part"; stop "'$1' gave a git-lfs pointer, not the data itself" ;;
    esac
}

# accept TARGET: the .part file is right and gets its name.
accept() { mv -f "$1.part" "$1" && echo "$1: $(wc -c <"$1" | tr -d ' ') bytes"; }

# require_sha256 TARGET SUM: TARGET.part has this checksum (a machine without a program for it is told so).
require_sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sum=$(sha256sum <"$1.part")
    elif command -v shasum >/dev/null 2>&1; then sum=$(shasum -a 256 <"$1.part")
    else echo "warning: neither sha256sum nor shasum is here: $1 is not checked" >&2; return; fi
    sum=${sum%% *}
    [ "$sum" = "$2" ] || { rm -f "$1.part"; stop "$1 is not the file it should be: SHA-256 $sum, expected $2"; }
}

# require_tokens TARGET: TARGET.part is a token file whose count agrees with its size.
require_tokens() {
    set -- "$1" $(od -An -td4 -N12 "$1.part") $(wc -c <"$1.part")
    case "${2:-} ${3:-}" in
        '20240520 1') width=2 ;;
        '20240801 7') width=4 ;;
        *) rm -f "$1.part"; stop "$1 is not a token file: it begins with ${2:-nothing} ${3:-}, expected 20240520 1" ;;
    esac
    [ $((1024 + $4 * width)) -eq "$5" ] || { rm -f "$1.part"; stop "$1 has $5 bytes, its header promises $((1024 + $4 * width))"; }
}

# Texts between lines "<|endoftext|>" -> one JSON object a line. Control characters other than tab are dropped.
stories_to_jsonl() {
    tab=$(printf '\t')
    tr -d '\000-\010\013-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e "s/$tab/\\\\t/g" | awk '
        function flush() { if (lines) print "{\"text\": \"" text "\"}"; text = ""; lines = 0 }
        $0 == "<|endoftext|>" { flush(); next }
        lines || $0 != "" { text = text (lines++ ? "\\n" : "") $0 }
        END { flush() }'
}

case $name in
    tinyshakespeare)
        target=$out/tinyshakespeare.txt
        fetch "${source:-https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt}" "$target"
        require_sha256 "$target" 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
        accept "$target" ;;
    tinystories)
        raw=$out/tinystories.txt
        fetch "${source:-https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-train.txt}" "$raw"
        head -c 1000000 "$raw.part" | grep -q -x '<|endoftext|>' || { rm -f "$raw.part"; stop "$raw has no lines <|endoftext|> between its stories"; }
        stories_to_jsonl <"$raw.part" >"$out/tinystories.jsonl.part" || exit 1
        rm -f "$raw.part"
        accept "$out/tinystories.jsonl" ;;
    fineweb | fineweb100B)
        case $name in fineweb) sample=fineweb10B ;; *) sample=$name ;; esac
        base=https://huggingface.co/datasets/kjj0/$sample-gpt2/resolve/main
        if [ "$source" ]; then
            set -- "$source"
        else
            set -- $base/fineweb_val_000000.bin
            i=1
            while [ $i -le "${SHARDS:-1}" ]; do
                set -- "$@" "$base/fineweb_train_$(printf '%06d' $i).bin"
                i=$((i + 1))
            done
        fi
        for url in "$@"; do
            file=${url##*/}
            target=$out/${file%%\?*}
            [ ! -s "$target" ] || { echo "$target is there already"; continue; }
            fetch "$url" "$target"
            require_tokens "$target"
            accept "$target"
        done ;;
    hellaswag)
        target=$out/hellaswag_val.jsonl
        fetch "${source:-https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl}" "$target"
        grep -q '"endings"' "$target.part" || { rm -f "$target.part"; stop "$target has no questions with \"endings\""; }
        accept "$target" ;;
    gpt2-vocab)
        base=${source:-https://openaipublic.blob.core.windows.net/gpt-2/encodings/main}
        fetch "$base/encoder.json" "$out/gpt2/encoder.json"
        require_sha256 "$out/gpt2/encoder.json" 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
        accept "$out/gpt2/encoder.json"
        fetch "$base/vocab.bpe" "$out/gpt2/vocab.bpe"
        require_sha256 "$out/gpt2/vocab.bpe" 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
        accept "$out/gpt2/vocab.bpe" ;;
    *)
        sed -n '2,/^set -u/p' "$0" | grep '^#' | sed 's/^# \{0,1\}//' >&2
        [ "$name" = --help ] || exit 2 ;;
esac
