// Package grammar measures the token masks of structured output next to those of
// llguidance, over the vocabulary of a large model.
//
// It owns the schemas, the bound on a mask's share of a decode step, and the peer's
// side (peer.py). The vocabulary and the answers are those of test/oracle/grammar.
//
// Start reading at Subject.
package grammar

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	oracle "metalfleet.dev/metalfleet/test/oracle/grammar"
)

// python has llguidance; bash test/oracle/install.sh grammar makes it.
var python = filepath.Join(".cache", "oracle", "grammar", "venv", "bin", "python")

const (
	// benchWords is the vocabulary of Qwen3.
	benchWords = 151_936
	// decodeStep is the fastest step that we know of: a row of Qwen3-8B in 4 bits on
	// an H100 took 6.2 ms (docs/reference/performance.md). A Mac's are longer.
	decodeStep = 6200.0 // microseconds
	// atMost of a step may go to the mask.
	atMost = 0.05
)

// Subject is `bench grammar`.
func Subject() scenario.Subject {
	return scenario.Subject{Name: "grammar", Help: "the token masks of structured output next to llguidance's", Scenarios: []scenario.Scenario{masks}}
}

var masks = scenario.Scenario{
	Name: "masks", Title: "Masks of structured output", Rounds: 5, Run: run,
	About: `The mask of each token of random answers under seven schemas, over a vocabulary of 151,936 tokens (words, JSON's punctuation,
digits, several scripts), and llguidance's masks of the same answers in the same round. First: the schema was just compiled, as in its
first request. Again: a second request with the same schema. The share is of a decode step of 6.2 ms, the fastest that was measured
(8B on an H100). The engine computes the mask while the step runs, so a client sees less than this, or nothing.`,
}

// benchSchemas are of the kinds that clients send.
var benchSchemas = []string{
	`{"type":"object"}`,
	`{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string"}},"required":["name","age","email"],"additionalProperties":false}`,
	`{"type":"object","properties":{"summary":{"type":"string","maxLength":400},"score":{"type":"number","minimum":0,"maximum":1}},"required":["summary","score"],"additionalProperties":false}`,
	`{"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"tags":{"type":"array","items":{"enum":["red","green","blue"]}}},"required":["id","tags"],"additionalProperties":false},"minItems":3}`,
	`{"$defs":{"n":{"type":"object","properties":{"value":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["value","children"],"additionalProperties":false}},"$ref":"#/$defs/n"}`,
	`{"type":"object","properties":{"date":{"type":"string","format":"date"},"code":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4}$"}},"required":["date","code"],"additionalProperties":false}`,
	`{"anyOf":[{"type":"object","properties":{"kind":{"const":"circle"},"radius":{"type":"number"}},"required":["kind","radius"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"square"},"side":{"type":"number"}},"required":["kind","side"],"additionalProperties":false}]}`,
}

// opening is what answers begin with, which is no blank: the peer takes none there.
func opening(schema string) byte {
	if schema == benchSchemas[3] {
		return '['
	}
	return '{'
}

// pass is the microseconds of one run, first or again.
type pass struct {
	Masks, Compiled []float64
	Refused         int
}

func run(ctx context.Context, e *scenario.Env, r *report.Report) error {
	words := oracle.Words(benchWords - 1)
	words = append(words, nil) // the end
	vocab := grammar.NewVocabulary(len(words), func(id int32) []byte { return words[id] })
	job := struct {
		Tokens  []string  `json:"tokens"`
		End     int       `json:"end"`
		Schemas []string  `json:"schemas"`
		Answers [][]int32 `json:"answers"`
	}{End: benchWords - 1}
	for _, w := range words {
		job.Tokens = append(job.Tokens, hex.EncodeToString(w))
	}
	job.Tokens[job.End] = hex.EncodeToString([]byte("<|end|>"))
	job.Schemas = benchSchemas
	for i, s := range benchSchemas {
		g, err := grammar.Compile(grammar.Spec{Kind: grammar.JSONSchema, Source: s})
		if err != nil {
			return err
		}
		ids, err := oracle.Write(rand.New(rand.NewPCG(1, uint64(i))), grammar.NewTable(g, vocab), words[:len(words)-1], 150, int32(opening(s)))
		if err != nil {
			return err
		}
		job.Answers = append(job.Answers, ids)
	}
	var ours, theirs [2][]pass
	for range e.Rounds {
		us, err := oursOnce(vocab, words, job.Answers)
		if err != nil {
			return err
		}
		var peer struct {
			Version string
			Passes  [2]pass
		}
		raw, err := json.Marshal(job)
		if err != nil {
			return err
		}
		if err := ask(ctx, raw, &peer); err != nil {
			return err
		}
		for i := range 2 {
			ours[i], theirs[i] = append(ours[i], us[i]), append(theirs[i], peer.Passes[i])
		}
	}
	r.Peer("llguidance", "1.9.1")
	fill(r, ours, theirs)
	return nil
}

// ask has llguidance compute the masks of a job.
func ask(ctx context.Context, job []byte, out any) error {
	cmd := exec.CommandContext(ctx, python, filepath.Join("test", "bench", "grammar", "peer.py"))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(job), os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("llguidance (bash test/oracle/install.sh grammar): %w", err)
	}
	return json.Unmarshal(raw, out)
}

// oursOnce goes over the answers twice with fresh tables.
func oursOnce(vocab *grammar.Vocabulary, words [][]byte, answers [][]int32) (out [2]pass, err error) {
	var tables []*grammar.Table
	for i := range 2 {
		for j, s := range benchSchemas {
			if i == 0 {
				began := time.Now()
				g, err := grammar.Compile(grammar.Spec{Kind: grammar.JSONSchema, Source: s})
				if err != nil {
					return out, err
				}
				tables = append(tables, grammar.NewTable(g, vocab))
				out[0].Compiled = append(out[0].Compiled, micros(began))
			}
			m := tables[j].Match(false)
			for _, id := range answers[j] {
				began := time.Now()
				if _, err := m.Mask(); err != nil {
					return out, err
				}
				out[i].Masks = append(out[i].Masks, micros(began))
				if !m.Advance(words[id]) {
					return out, fmt.Errorf("%q does not fit any more", words[id])
				}
			}
		}
	}
	return out, nil
}

func micros(since time.Time) float64 { return float64(time.Since(since).Nanoseconds()) / 1000 }

func fill(r *report.Report, ours, theirs [2][]pass) {
	each := func(passes []pass, of func(pass) float64) []float64 {
		var out []float64
		for _, p := range passes {
			out = append(out, of(p))
		}
		return out
	}
	mean := func(p pass) float64 {
		sum := 0.0
		for _, v := range p.Masks {
			sum += v
		}
		return sum / float64(len(p.Masks))
	}
	at := func(q float64) func(pass) float64 {
		return func(p pass) float64 {
			sorted := slices.Sorted(slices.Values(p.Masks))
			return sorted[int(q*float64(len(sorted)-1))]
		}
	}
	compiled := func(p pass) float64 { return slices.Max(p.Compiled) }
	share := func(p pass) float64 { return 100 * mean(p) / decodeStep }
	r.Add("compiling, slowest schema", "us", report.Bound{}, each(ours[0], compiled)...)
	r.Add("compiling, slowest schema, llguidance", "us", report.Bound{}, each(theirs[0], compiled)...)
	for i, when := range []string{"first", "again"} {
		r.Add("mask, "+when+", mean", "us", report.Bound{}, each(ours[i], mean)...)
		r.Add("mask, "+when+", mean, llguidance", "us", report.Bound{}, each(theirs[i], mean)...)
		r.Add("mask, "+when+", p99", "us", report.Bound{}, each(ours[i], at(0.99))...)
		r.Add("mask, "+when+", p99, llguidance", "us", report.Bound{}, each(theirs[i], at(0.99))...)
		r.Add("share of a step of 6.2 ms, "+when, "%", report.Under(100*atMost), each(ours[i], share)...)
	}
}
