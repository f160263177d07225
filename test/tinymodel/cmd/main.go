// Command tinymodel writes a random model: as a GGUF file, or as a folder in
// Hugging Face's or MLX's layout.
//
//	go run ./test/tinymodel/cmd --out model.gguf
//	go run ./test/tinymodel/cmd --out large.gguf --bytes 4294967296
//	go run ./test/tinymodel/cmd --out qwen --shape qwen3-8b --format mlx --bits 4 --group 64
//	go run ./test/tinymodel/cmd --out cases --cases > cases.json
//	go run ./test/tinymodel/cmd --out readers --readers > readers.json
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "tinymodel:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	out, family, format, kind, shape, mode string
	bits, group                            int
	bytes, shard                           int64
	cases, readers, blocks                 bool
}

func run() error {
	var o options
	var given tinymodel.Config // sizes that replace those of the shape
	flag.StringVar(&o.out, "out", "", "file or folder to write (required)")
	flag.StringVar(&o.out, "o", "", "same as --out")
	flag.StringVar(&o.family, "family", "", "gemma3_text, gpt_oss, llama, mistral, qwen2, qwen3, qwen3_5, qwen3_moe or qwen3_next (default: that of the shape)")
	flag.StringVar(&o.format, "format", "gguf", "gguf, hf or mlx")
	flag.StringVar(&o.kind, "type", "", "of matrices in GGUF: F32, F16, BF16, Q4_0, Q4_1 (default), Q5_0, Q5_1, Q8_0, Q2_K to Q6_K; of floats and scales in folders: F32, F16, BF16 (default)")
	flag.StringVar(&o.shape, "shape", "tiny", "tiny, gemma3-1b, gpt-oss-20b, llama-4gb, qwen3-0.6b, qwen3-8b, qwen3-30b-a3b or qwen3.5-0.8b")
	flag.StringVar(&o.mode, "mode", "affine", "of quantised matrices, with --format mlx: affine, mxfp4, mxfp8 or nvfp4")
	flag.IntVar(&o.bits, "bits", 4, "of a weight, with --format mlx")
	flag.IntVar(&o.group, "group", 64, "weights that share a scale, with --format mlx")
	flag.Int64Var(&o.bytes, "bytes", 0, "about how large a Llama becomes; instead of --shape")
	flag.Int64Var(&o.shard, "shard-bytes", 5e9, "most bytes of one file of a folder")
	flag.BoolVar(&o.cases, "cases", false, "write the cases of test/oracle/goldens/tiny below --out, and list them as JSON on standard output")
	flag.BoolVar(&o.readers, "readers", false, "the same for test/oracle/goldens/readers: models that make vectors and scores")
	flag.BoolVar(&o.blocks, "block-cases", false, "the same with the cases of test/oracle/goldens/kquants")
	flag.Uint64Var(&given.Seed, "seed", 1, "seed of the weights")
	for _, n := range []struct {
		to          *int
		name, usage string
	}{
		{&given.Layers, "layers", "layers"}, {&given.Hidden, "hidden", "hidden width"}, {&given.FeedForward, "feed-forward", "feed-forward width"},
		{&given.QueryHeads, "query-heads", "query heads"}, {&given.KVHeads, "kv-heads", "heads for keys and values"},
		{&given.HeadSize, "head-size", "size of one head"}, {&given.Context, "context", "context length"}, {&given.Vocabulary, "vocabulary", "tokens"},
	} {
		flag.IntVar(n.to, n.name, 0, n.usage+" (default: of the shape)")
	}
	flag.BoolVar(&given.Untied, "untied", false, "an output head of its own")
	flag.Parse()
	if o.out == "" || flag.NArg() > 0 {
		flag.Usage()
		return fmt.Errorf("want --out PATH and no other argument")
	}
	switch {
	case o.cases:
		return writeCases(o.out, tinymodel.Cases())
	case o.blocks:
		return writeCases(o.out, tinymodel.BlockCases())
	}
	if o.readers {
		return writeReaders(o.out)
	}
	return o.write(given)
}

func (o options) write(given tinymodel.Config) error {
	layout, kind, bits, err := o.layout()
	if err != nil {
		return err
	}
	c, err := tinymodel.Shape(o.shape, bits)
	if o.bytes > 0 {
		c, err = tinymodel.Sized(o.bytes, bits), nil
	}
	if err != nil {
		return err
	}
	for _, n := range []struct{ to, given *int }{
		{&c.Layers, &given.Layers}, {&c.Hidden, &given.Hidden}, {&c.FeedForward, &given.FeedForward}, {&c.QueryHeads, &given.QueryHeads},
		{&c.KVHeads, &given.KVHeads}, {&c.HeadSize, &given.HeadSize}, {&c.Context, &given.Context}, {&c.Vocabulary, &given.Vocabulary},
	} {
		if *n.given != 0 {
			*n.to = *n.given
		}
	}
	if o.family != "" {
		c.Family = tinymodel.Family(o.family)
	}
	c.Seed, c.Type, c.Untied = given.Seed, kind, c.Untied || given.Untied
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	if layout != nil {
		return tinymodel.WriteFolder(o.out, c, *layout)
	}
	return tinymodel.Write(o.out, c)
}

// layout reads the flags of the format: the layout of a folder, or nil and the
// type of a GGUF file, and how many bits a weight takes.
func (o options) layout() (*tinymodel.Layout, weights.Type, float64, error) {
	name := o.kind
	if name == "" {
		name = map[string]string{"gguf": "Q4_1", "hf": "BF16", "mlx": "BF16"}[o.format]
	}
	kind, err := parseType(name)
	if err != nil {
		return nil, 0, 0, err
	}
	format, err := kind.Format()
	if err != nil {
		return nil, 0, 0, err
	}
	switch o.format {
	case "gguf":
		const whole = 256 // blocks of every type
		row, _ := kind.RowBytes(whole)
		return nil, kind, float64(row*8) / whole, nil
	case "hf", "mlx":
		if format.Quantized() {
			return nil, 0, 0, fmt.Errorf("type %q is not one of a folder's floats: F32, F16, BF16", name)
		}
		bits := float64(format.Type.Bytes() * 8)
		if o.format == "mlx" {
			small, ok := quant.BlockFloatNamed(o.mode)
			switch {
			case ok:
				bits, format = float64(small.Bits)+8/float64(small.Group), small
			case o.mode == "affine":
				bits = float64(o.bits) + 2*bits/float64(max(1, o.group))
				format = quant.AffineOf(o.bits, o.group, format.Type)
			default:
				return nil, 0, 0, fmt.Errorf("mode %q is unknown, want affine, mxfp4, mxfp8 or nvfp4", o.mode)
			}
		}
		return &tinymodel.Layout{Matrices: format, ShardBytes: o.shard}, 0, bits, format.Check()
	}
	return nil, 0, 0, fmt.Errorf("format %q is unknown, want gguf, hf or mlx", o.format)
}

func parseType(name string) (weights.Type, error) {
	for _, t := range weights.Types() {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("type %q is unknown, want one of %s", name, strings.Join(weights.SupportedTypes(), ", "))
}

// listed is a case as the references read it.
type listed struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"`
	SHA256  string    `json:"sha256"`
	Prompts [][]int32 `json:"prompts"`
}

func writeCases(out string, cases []tinymodel.Case) error {
	var list []listed
	for i, c := range cases {
		dir := filepath.Join(out, fmt.Sprintf("%02d", i))
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		path, err := c.Write(dir)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.Name, err)
		}
		sum, err := tinymodel.Digest(path)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.Name, err)
		}
		list = append(list, listed{c.Name, path, sum, c.Prompts()})
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", " ")
	return enc.Encode(list)
}

// listedReader is a reader as the reference reads it.
type listedReader struct {
	Name    string            `json:"name"`
	Path    string            `json:"path"`
	SHA256  string            `json:"sha256"`
	Family  string            `json:"family"`
	Rerank  bool              `json:"rerank"`
	Prompts map[string]string `json:"prompts"`
	Texts   []string          `json:"texts"`
}

func writeReaders(out string) error {
	var list []listedReader
	for i, r := range tinymodel.Readers() {
		path := filepath.Join(out, fmt.Sprintf("%02d", i))
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		if err := r.Write(path); err != nil {
			return fmt.Errorf("reader %s: %w", r.Name, err)
		}
		sum, err := tinymodel.Digest(path)
		if err != nil {
			return fmt.Errorf("reader %s: %w", r.Name, err)
		}
		list = append(list, listedReader{r.Name, path, sum, r.Family, r.Rerank, r.Prompts, tinymodel.ReaderTexts()})
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", " ")
	return enc.Encode(list)
}
