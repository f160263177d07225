// Command grammar judges structured output by what others say: it lets a model
// that answers at random write answers under random schemas, which Python's
// jsonschema validates; it goes through the official JSON-Schema-Test-Suite; and
// it measures the masks over a large vocabulary beside llguidance.
//
// It owns the random schemas, the random model and the record in docs/bench. It
// fails when one answer is no JSON or not valid, when one instance that the suite
// calls invalid is let through, when fewer than stated of the valid ones are, or
// when a bound is missed.
//
//	go run ./test/oracle/grammar          (make test-grammar)
//	go run ./test/oracle/grammar -bench   (make bench-grammar)
//
// Start reading at run; the suite is in suite.go, the figures in bench.go.
package main

import (
	"bufio"
	"bytes"
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
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
)

type options struct {
	folder, out string
	schemas     int
	seed        uint64
	bench       bool
	runs        int
}

func main() {
	var o options
	flag.StringVar(&o.folder, "folder", filepath.Join(".cache", "grammar"), "what test/oracle/grammar/install.sh installed")
	flag.IntVar(&o.schemas, "schemas", 10_000, "random schemas")
	flag.Uint64Var(&o.seed, "seed", 1, "of schemas and answers")
	flag.BoolVar(&o.bench, "bench", false, "measure instead")
	flag.IntVar(&o.runs, "runs", 5, "runs of the measurement")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for grammar.json and grammar.md; empty writes none")
	flag.Parse()
	err := error(nil)
	if o.bench {
		err = bench(o)
	} else {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "grammar:", err)
		os.Exit(1)
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
	words := newWords(2_000)
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
	cmd := exec.Command(o.python(), filepath.Join("test", "oracle", "grammar", script))
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
		g, err := grammar.Compile(grammar.Spec{Kind: grammar.JSONSchema, Source: source})
		if errors.Is(err, grammar.ErrInvalid) {
			continue // nothing satisfies it
		}
		if err != nil {
			return answered{Schema: source}, err
		}
		ids, err := write(rng, grammar.NewTable(g, vocab), words, 40)
		var text []byte
		for _, id := range ids {
			text = append(text, words[id]...)
		}
		return answered{source, string(text)}, err
	}
	return answered{}, errors.New("no schema in 100 that anything satisfies")
}

// write draws among what the mask allows and, past most tokens, half of the time
// takes what ends things first, else a single byte.
func write(rng *rand.Rand, t *grammar.Table, words [][]byte, most int, first ...int32) ([]int32, error) {
	m := t.Match(false)
	var ids []int32
	for _, id := range first {
		if !m.Advance(words[id]) {
			return nil, fmt.Errorf("it cannot begin with %q", words[id])
		}
		ids = append(ids, id)
	}
	for {
		if m.Ended() || m.Accepting() && (rng.IntN(4) == 0 || len(ids) > most) {
			return ids, nil
		}
		if len(ids) > 100*most {
			return ids, fmt.Errorf("no end in sight")
		}
		mask, err := m.Mask()
		if err != nil {
			return ids, err
		}
		among := len(words)
		if len(ids) > most {
			among = 256
		}
		id := draw(rng, mask, among)
		if len(ids) > most && rng.IntN(2) == 0 {
			for _, c := range []byte(`"}],:e0nltrufas1-`) {
				if grammar.Allows(mask, int32(c)) {
					id = int32(c)
					break
				}
			}
		}
		if id < 0 {
			return ids, fmt.Errorf("nothing may come next and it is no end")
		}
		if !m.Advance(words[id]) {
			return ids, fmt.Errorf("the mask allows %q, the matcher does not", words[id])
		}
		ids = append(ids, id)
	}
}

// draw takes one allowed token, each as likely; below 0 where there is none.
func draw(rng *rand.Rand, mask []uint64, size int) int32 {
	chosen, seen := int32(-1), 0
	for id := range int32(size) {
		if grammar.Allows(mask, id) {
			if seen++; rng.IntN(seen) == 0 {
				chosen = id
			}
		}
	}
	return chosen
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
