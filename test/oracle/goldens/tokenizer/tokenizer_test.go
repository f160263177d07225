//go:build oracle

package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

var (
	dir  = flag.String("dir", "", "folder that compare.py wrote")
	only = flag.String("only", "", "compare only tokenizers whose name contains this")
)

func TestTokenizersAgreeWithTheReference(t *testing.T) {
	if *dir == "" {
		t.Fatal("flag -dir is missing: make test-oracle SUITE=text runs compare.py first and passes it")
	}
	if err := run(*dir, *only); err != nil {
		t.Fatal(err)
	}
}

// kit is one tokenizer of index.json.
type kit struct {
	Name, Folder, GGUF, Pre string
	Count                   int
	Lossless                bool
	Around                  int       // number of texts that are also read with special tokens around
	Decoded                 int       // number of texts that are decoded
	Plain                   bool      // special tokens in texts are text
	IDs                     [][]int32 // to decode; nil where texts are read
}

const mostShown = 5 // differences of one tokenizer

func run(dir, only string) error {
	texts, err := readTexts(filepath.Join(dir, "texts.json"))
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return err
	}
	var kits []kit
	if err := json.Unmarshal(raw, &kits); err != nil {
		return err
	}
	different, compared := 0, 0
	for _, k := range kits {
		if !strings.Contains(k.Name, only) {
			continue
		}
		n, bad, err := compareKit(dir, k, texts)
		if err != nil {
			return fmt.Errorf("%s: %w", k.Name, err)
		}
		compared += n
		different += bad
	}
	if different > 0 || compared == 0 {
		return fmt.Errorf("%d of %d comparisons differ; compare.py --explain shows what was wanted", different, compared)
	}
	fmt.Printf("tokenizers: %d kinds, %d texts, %d comparisons: ids, decoded texts and streams equal\n", len(kits), len(texts), compared)
	return nil
}

func readTexts(path string) ([]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines []string
	if err := json.Unmarshal(raw, &lines); err != nil {
		return nil, err
	}
	for i, l := range lines {
		b, err := base64.StdEncoding.DecodeString(l)
		if err != nil {
			return nil, err
		}
		lines[i] = string(b)
	}
	return lines, nil
}

func compareKit(dir string, k kit, texts []string) (compared, different int, err error) {
	sums, err := os.ReadFile(filepath.Join(dir, k.Folder, "sums"))
	if err != nil {
		return 0, 0, err
	}
	built, err := build(filepath.Join(dir, k.Folder), k)
	if err != nil {
		return 0, 0, err
	}
	for from, t := range built {
		for i := 0; i*8 < len(sums); i++ {
			c := comparison{kit: k, tok: t, want: sums[i*8 : i*8+8]}
			var said string
			if k.IDs != nil {
				said = c.decode(k.IDs[i], k.IDs[i], true)
			} else {
				said = c.text(texts[i], i)
			}
			compared++
			if said == "" {
				continue
			}
			if different++; different <= mostShown {
				fmt.Printf("%q %d (%s): %s\n", k.Name, i, from, said)
			}
		}
	}
	return compared, different, nil
}

// build reads a tokenizer from each place it is in.
func build(path string, k kit) (map[string]*tokenizer.Tokenizer, error) {
	out := map[string]*tokenizer.Tokenizer{}
	f, err := folder.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if out["folder"], err = tokenizer.FromFolder(f); err != nil {
		return nil, err
	}
	if k.GGUF == "" {
		return out, nil
	}
	file, err := os.Open(k.GGUF)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	header, err := weights.ReadHeader(file, info.Size())
	if err != nil {
		return nil, err
	}
	m := maps.Clone(header.Metadata)
	if k.Pre != "" {
		m["tokenizer.ggml.pre"] = k.Pre
	}
	out["gguf"], err = tokenizer.FromGGUF(m)
	return out, err
}

type comparison struct {
	kit
	tok  *tokenizer.Tokenizer
	want []byte
}

// text compares one text; it returns what differs.
func (c comparison) text(text string, i int) string {
	ids, err := c.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: !c.Plain})
	if err != nil {
		return err.Error()
	}
	around := ids
	if i < c.Around {
		if around, err = c.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true, AddSpecial: true}); err != nil {
			return err.Error()
		}
	}
	if said := c.decode(ids, around, i < c.kit.Decoded); said != "" {
		return fmt.Sprintf("%q: %s", text, said)
	}
	if whole, _ := c.tok.Decode(ids, false); c.Lossless && whole != strings.ToValidUTF8(text, "\uFFFD") && utf8.ValidString(text) {
		return fmt.Sprintf("%q comes back as %q", text, whole)
	}
	return ""
}

// decode compares ids, and their text, whole and as a stream.
func (c comparison) decode(ids, around []int32, text bool) string {
	var said []string
	sum := func(crc uint32, ids []int32) uint32 {
		b, _ := binary.Append(nil, binary.LittleEndian, ids)
		return crc32.Update(crc, crc32.IEEETable, b)
	}
	if got := sum(sum(0, ids), around); got != binary.LittleEndian.Uint32(c.want) {
		said = append(said, fmt.Sprintf("ids %v, around %v", ids, around))
	}
	if !text {
		return strings.Join(said, "; ")
	}
	whole, err := c.tok.Decode(ids, false)
	skipped, err2 := c.tok.Decode(ids, true)
	if err := errors.Join(err, err2); err != nil {
		return err.Error()
	}
	crc := crc32.Update(crc32.ChecksumIEEE([]byte(whole+"\x00")), crc32.IEEETable, []byte(skipped))
	if crc != binary.LittleEndian.Uint32(c.want[4:]) {
		said = append(said, fmt.Sprintf("ids %v decode to %+q, skipping special tokens %+q", ids, whole, skipped))
	}
	if streamed, err := stream(c.tok, ids); err != nil || streamed != whole {
		said = append(said, fmt.Sprintf("stream %q, whole %q, %v", streamed, whole, err))
	}
	return strings.Join(said, "; ")
}

func stream(t *tokenizer.Tokenizer, ids []int32) (string, error) {
	var out strings.Builder
	d := t.NewDecoder(false)
	for _, id := range ids {
		s, err := d.Push(id)
		if err != nil {
			return "", err
		}
		if !utf8.ValidString(s) {
			return "", fmt.Errorf("piece %q is not whole characters", s)
		}
		out.WriteString(s)
	}
	out.WriteString(d.Flush())
	return out.String(), nil
}
