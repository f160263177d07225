// Command tinymodel writes a random Llama model as a GGUF file.
//
//	go run ./hack/tinymodel/cmd -o model.gguf
//	go run ./hack/tinymodel/cmd -o large.gguf -bytes 4294967296
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/hack/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "tinymodel:", err)
		os.Exit(1)
	}
}

func run() error {
	c := tinymodel.Default()
	out := flag.String("o", "", "file to write (required)")
	size := flag.Int64("bytes", 0, "about how large the file becomes; 0 takes the sizes below")
	kind := flag.String("type", c.Type.String(), "type of the matrices: F32, F16, BF16, Q4_0, Q4_1, Q8_0")
	seed := flag.Uint64("seed", c.Seed, "seed of the weights")
	flag.IntVar(&c.Layers, "layers", c.Layers, "layers")
	flag.IntVar(&c.Hidden, "hidden", c.Hidden, "hidden width")
	flag.IntVar(&c.FeedForward, "feed-forward", c.FeedForward, "feed-forward width")
	flag.IntVar(&c.QueryHeads, "query-heads", c.QueryHeads, "query heads")
	flag.IntVar(&c.KVHeads, "kv-heads", c.KVHeads, "heads for keys and values")
	flag.IntVar(&c.HeadSize, "head-size", c.HeadSize, "size of one head")
	flag.IntVar(&c.Context, "context", c.Context, "context length")
	flag.IntVar(&c.Vocabulary, "vocabulary", c.Vocabulary, "tokens")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		return fmt.Errorf("want -o FILE and no other argument")
	}
	if *size > 0 {
		c = tinymodel.Large(*size)
	}
	t, err := parseType(*kind)
	if err != nil {
		return err
	}
	c.Type, c.Seed = t, *seed
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	return tinymodel.Write(*out, c)
}

func parseType(name string) (weights.Type, error) {
	for _, t := range []weights.Type{weights.F32, weights.F16, weights.BF16, weights.Q4_0, weights.Q4_1, weights.Q8_0} {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("type %q is unknown, want one of %v", name, weights.SupportedTypes())
}
