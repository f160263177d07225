// Command tokenizer compares metal/tokenizer with the ids that compare.py
// wrote, under every pre-tokenizer, and with the text that they decode to.
// It exits 1 on the first differences.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: tokenizer MODEL.gguf TEXTS.jsonl")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type line struct {
	Text    []byte             `json:"text"`
	IDs     map[string][]int32 `json:"ids"`
	Decoded string             `json:"decoded"`
}

func run(model, texts string) error {
	tokenizers, err := build(model)
	if err != nil {
		return err
	}
	f, err := os.Open(texts)
	if err != nil {
		return err
	}
	defer f.Close()
	lines, different := 0, 0
	in := bufio.NewScanner(f)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return fmt.Errorf("line %d of %s: %w", lines+1, texts, err)
		}
		lines++
		if !compare(tokenizers, l) {
			different++
		}
		if different == 10 {
			break
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read %s: %w", texts, err)
	}
	if different > 0 || lines == 0 {
		return fmt.Errorf("%d of the first %d texts differ", different, lines)
	}
	fmt.Printf("%d texts, %d pre-tokenizers: all ids and decoded texts equal\n", lines, len(tokenizers))
	return nil
}

// build reads one vocabulary under each pre-tokenizer.
func build(path string) (map[string]*tokenizer.Tokenizer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	header, err := weights.ReadHeader(f, info.Size())
	if err != nil {
		return nil, err
	}
	out := map[string]*tokenizer.Tokenizer{}
	for _, pre := range tokenizer.SupportedPreTokenizers() {
		m := maps.Clone(header.Metadata)
		m["tokenizer.ggml.pre"] = pre
		if out[pre], err = tokenizer.FromGGUF(m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func compare(tokenizers map[string]*tokenizer.Tokenizer, l line) bool {
	equal := true
	for pre, t := range tokenizers {
		want, ok := l.IDs[pre]
		got, err := t.Encode(string(l.Text), tokenizer.EncodeOptions{ParseSpecial: true})
		if err != nil || !ok || !slices.Equal(got, want) {
			equal = false
			fmt.Printf("%s: %q\n got %v\nwant %v\n", pre, l.Text, got, want)
		}
	}
	t := tokenizers["gpt-2"]
	whole, err := t.Decode(l.IDs["gpt-2"], false)
	if err != nil || whole != l.Decoded {
		equal = false
		fmt.Printf("decode: %v\n got %q\nwant %q\n", err, whole, l.Decoded)
	}
	streamed := ""
	d := t.NewDecoder(false)
	for _, id := range l.IDs["gpt-2"] {
		s, err := d.Push(id)
		if err != nil {
			fmt.Println(err)
			return false
		}
		streamed += s
	}
	if streamed += d.Flush(); streamed != whole {
		equal = false
		fmt.Printf("stream: %q, whole %q\n", streamed, whole)
	}
	return equal
}
