// Command tinymodel writes a random Llama as a GGUF file, or the models of the
// makers of goldens.
//
//	go run ./metal/tinymodel/cmd --out model.gguf
//	go run ./metal/tinymodel/cmd --out large.gguf --bytes 4294967296
//	go run ./metal/tinymodel/cmd --out cases --cases > cases.json
//	go run ./metal/tinymodel/cmd --out readers --readers > readers.json
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "tinymodel:", err)
		os.Exit(1)
	}
}

func run() error {
	var out string
	flag.StringVar(&out, "out", "", "file or folder to write (required)")
	flag.StringVar(&out, "o", "", "same as --out")
	bytes := flag.Int64("bytes", 0, "about how large the file becomes; 0 writes the smallest model")
	cases := flag.Bool("cases", false, "write the cases of test/oracle/goldens/tiny below --out, and list them as JSON on standard output")
	readers := flag.Bool("readers", false, "the same for test/oracle/goldens/readers: models that make vectors and scores")
	blocks := flag.Bool("block-cases", false, "the same with the cases of test/oracle/goldens/kquants")
	drafts := flag.Bool("drafts", false, "the same with the cases of metal/arch/testdata/drafts")
	flag.Parse()
	if out == "" || flag.NArg() > 0 {
		flag.Usage()
		return fmt.Errorf("want --out PATH and no other argument")
	}
	switch {
	case *cases:
		return writeCases(out, tinymodel.Cases())
	case *blocks:
		return writeCases(out, tinymodel.BlockCases())
	case *drafts:
		return writeCases(out, tinymodel.DraftCases())
	case *readers:
		return writeReaders(out)
	}
	c := tinymodel.Default()
	if *bytes > 0 {
		c = tinymodel.Large(*bytes)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return tinymodel.Write(out, c)
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
