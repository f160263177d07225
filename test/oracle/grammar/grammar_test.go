//go:build oracle

package grammar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
)

type options struct {
	folder  string
	schemas int
	seed    uint64
}

var (
	schemas = flag.Int("schemas", 10_000, "random schemas")
	seed    = flag.Uint64("seed", 1, "seed of the schemas and answers")
)

func TestStructuredOutputIsWhatOthersCallValid(t *testing.T) {
	o := options{folder: filepath.Join("..", "..", "..", ".cache", "oracle", "grammar"), schemas: *schemas, seed: *seed}
	if err := run(o); err != nil {
		t.Fatal(err)
	}
}

func run(o options) error {
	if err := suites(o); err != nil {
		return err
	}
	return random(o)
}

func (o options) python() string { return filepath.Join(o.folder, "venv", "bin", "python") }

// answered is a schema and what the random model wrote.
type answered struct {
	Schema string `json:"schema"`
	Answer string `json:"answer"`
}

// random validates answers to random schemas.
func random(o options) error {
	began := time.Now()
	words := Words(2_000)
	vocab := grammar.NewVocabulary(len(words), func(id int32) []byte { return words[id] })
	lines := make([]answered, o.schemas)
	failed := make([]error, o.schemas)
	next := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				lines[i], failed[i] = answer(rand.New(rand.NewPCG(o.seed, uint64(i))), vocab, words)
			}
		})
	}
	for i := range o.schemas {
		next <- i
	}
	close(next)
	workers.Wait()
	for i, err := range failed {
		if err != nil {
			return fmt.Errorf("schema %d of seed %d: %s: %w", i, o.seed, lines[i].Schema, err)
		}
	}
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			return err
		}
	}
	var verdict struct{ Checked, Failed int }
	if err := o.ask("validate.py", &in, &verdict); err != nil {
		return err
	}
	fmt.Printf("%d answers of a random model to random schemas, seed %d: %d are valid JSON of their schema, %d are not (%s)\n",
		verdict.Checked, o.seed, verdict.Checked-verdict.Failed, verdict.Failed, time.Since(began).Round(time.Second))
	if verdict.Failed > 0 || verdict.Checked != o.schemas {
		return fmt.Errorf("%d of %d answers were checked and %d are not valid", verdict.Checked, o.schemas, verdict.Failed)
	}
	return nil
}

// ask runs one of our scripts.
func (o options) ask(script string, in *bytes.Buffer, out any) error {
	cmd := exec.Command(o.python(), script)
	cmd.Stdin, cmd.Stderr = bufio.NewReader(in), os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	return json.Unmarshal(raw, out)
}

// answer makes a schema that something satisfies, and an answer.
func answer(rng *rand.Rand, vocab *grammar.Vocabulary, words [][]byte) (answered, error) {
	for range 100 {
		source := string(marshal(newSchema(rng)))
		g, err := grammar.Compile(context.Background(), grammar.Spec{Kind: grammar.JSONSchema, Source: source})
		if errors.Is(err, grammar.ErrInvalid) {
			continue // nothing satisfies it
		}
		if err != nil {
			return answered{Schema: source}, err
		}
		ids, err := Write(rng, grammar.NewTable(g, vocab), words, 40)
		var text []byte
		for _, id := range ids {
			text = append(text, words[id]...)
		}
		return answered{Schema: source, Answer: string(text)}, err
	}
	return answered{}, errors.New("no schema in 100 that anything satisfies")
}

func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // it is made of maps, lists and words
	}
	return bytes.TrimSpace(b.Bytes())
}
