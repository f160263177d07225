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
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/toolcall"
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
	About: `The mask of each token of random answers under seven schemas, and of required calls of tools with these schemas, over a vocabulary of
151,936 tokens (words, JSON's punctuation, digits, several scripts), and llguidance's masks of the same answers in the same round.
First: the schema was just compiled, as in its first request. Again: a second request with the same schema. The share is of a decode
step of 6.2 ms, the fastest that was measured (8B on an H100). The engine computes the mask while the step runs, so a client sees less
than this, or nothing. Where calls are not required, masks are computed for tokens that do not fit alone.`,
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

// job is what both sides compute masks for.
type job struct {
	Tokens  []string  `json:"tokens"`
	End     int       `json:"end"`
	Schemas []string  `json:"schemas"`
	Answers [][]int32 `json:"answers"`

	words [][]byte
	vocab *grammar.Vocabulary
	calls [][]int32
}

// benchCalls are calls of the tool that has the second schema.
var benchCalls = []struct {
	format  toolcall.Format
	written string
}{
	{toolcall.Hermes, "<tool_call>\n{\"name\": \"tool_1\", \"arguments\": {\"name\": \"Ada Lovelace\", \"age\": 36, \"email\": \"ada@example.org\"}}\n</tool_call>"},
	{toolcall.QwenXML, "<tool_call>\n<function=tool_1>\n<parameter=name>\nAda Lovelace\n</parameter>\n<parameter=age>\n36\n</parameter>\n<parameter=email>\nada@example.org\n</parameter>\n</function>\n</tool_call>"},
}

// callSpec are calls of tools that have the schemas.
func callSpec(f toolcall.Format) (grammar.Spec, error) {
	var definitions []string
	for i, s := range benchSchemas {
		definitions = append(definitions, fmt.Sprintf(`{"function":{"name":"tool_%d","parameters":%s}}`, i, s))
	}
	tools, err := toolcall.ReadTools([]byte("[" + strings.Join(definitions, ",") + "]"))
	return grammar.Spec{Kind: grammar.Functions, Calls: f.Grammar(tools, toolcall.Hold{Required: true})}, err
}

// encode takes the longest token each time.
func (j *job) encode(text string) (ids []int32) {
	known := map[string]int32{}
	for id, w := range j.words {
		known[string(w)] = int32(id)
	}
	for text != "" {
		n := min(len(text), 32)
		for n > 1 && known[text[:n]] == 0 {
			n--
		}
		ids, text = append(ids, known[text[:n]]), text[n:]
	}
	return ids
}

// newJob has random answers to every schema.
func newJob(ctx context.Context) (*job, error) {
	j := &job{End: benchWords - 1, Schemas: benchSchemas, words: append(oracle.Words(benchWords-1), nil)} // the last token is the end
	j.vocab = grammar.NewVocabulary(len(j.words), func(id int32) []byte { return j.words[id] })
	for _, w := range j.words {
		j.Tokens = append(j.Tokens, hex.EncodeToString(w))
	}
	j.Tokens[j.End] = hex.EncodeToString([]byte("<|end|>"))
	for i, s := range benchSchemas {
		g, err := grammar.Compile(ctx, grammar.Spec{Kind: grammar.JSONSchema, Source: s})
		if err != nil {
			return nil, err
		}
		ids, err := oracle.Write(rand.New(rand.NewPCG(1, uint64(i))), grammar.NewTable(g, j.vocab), j.words[:j.End], 150, int32(opening(s)))
		if err != nil {
			return nil, err
		}
		j.Answers = append(j.Answers, ids)
	}
	for _, c := range benchCalls {
		j.calls = append(j.calls, j.encode(c.written))
	}
	return j, nil
}

func run(ctx context.Context, e *scenario.Env, r *report.Report) error {
	j, err := newJob(ctx)
	if err != nil {
		return err
	}
	r.Peer("llguidance", "1.9.1")
	return e.Measure(ctx, r, 0, figures(), scenario.Group{Name: "masks", Turns: []scenario.Turn{{Name: "ours", Run: j.ours}, {Name: "llguidance", Run: j.peer}}})
}

// pass is the microseconds of one run over all answers, first or again.
type pass struct{ Masks, Compiled []float64 }

// values of the first pass and of the second.
func values(first, again pass) scenario.Values {
	v := scenario.Values{"compiled": slices.Max(first.Compiled)}
	for when, masks := range map[string][]float64{"first": first.Masks, "again": again.Masks} {
		slices.Sort(masks)
		sum := 0.0
		for _, m := range masks {
			sum += m
		}
		v[when+" mean"], v[when+" p99"] = sum/float64(len(masks)), masks[int(0.99*float64(len(masks)-1))]
	}
	return v
}

func figures() []scenario.Figure {
	out := []scenario.Figure{
		{Name: "compiling, slowest schema", Unit: "us", Of: "ours/compiled"},
		{Name: "compiling, slowest schema, llguidance", Unit: "us", Of: "llguidance/compiled"},
	}
	for _, when := range []string{"first", "again"} {
		for _, figure := range []string{"mean", "p99"} {
			name, value := fmt.Sprintf("mask, %s, %s", when, figure), when+" "+figure
			out = append(out,
				scenario.Figure{Name: name, Unit: "us", Of: "ours/" + value},
				scenario.Figure{Name: name + ", llguidance", Unit: "us", Of: "llguidance/" + value})
		}
		for _, of := range []string{"", "calls "} {
			out = append(out, scenario.Figure{Name: of + "share of a step of 6.2 ms, " + when, Unit: "%", Of: "ours/" + of + when + " mean", Scale: 100 / decodeStep, Bound: report.Under(100 * atMost)})
		}
	}
	return out
}

// peer has llguidance compute the masks.
func (j *job) peer(ctx context.Context) (scenario.Values, error) {
	input, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, filepath.Join("test", "bench", "grammar", "peer.py"))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("llguidance (bash test/oracle/install.sh grammar): %w", err)
	}
	var out struct{ Passes [2]pass }
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("llguidance printed %q: %w", raw, err)
	}
	return values(out.Passes[0], out.Passes[1]), nil
}

// ours are the masks of the answers and of the calls.
func (j *job) ours(ctx context.Context) (scenario.Values, error) {
	var schemas, calls []grammar.Spec
	for _, s := range benchSchemas {
		schemas = append(schemas, grammar.Spec{Kind: grammar.JSONSchema, Source: s})
	}
	for _, c := range benchCalls {
		s, err := callSpec(c.format)
		if err != nil {
			return nil, err
		}
		calls = append(calls, s)
	}
	out, err := j.twice(ctx, schemas, j.Answers)
	if err != nil {
		return nil, err
	}
	called, err := j.twice(ctx, calls, j.calls)
	for name, v := range called {
		out["calls "+name] = v
	}
	return out, err
}

// twice goes over answers twice with new tables.
func (j *job) twice(ctx context.Context, specs []grammar.Spec, answers [][]int32) (scenario.Values, error) {
	var tables []*grammar.Table
	var out [2]pass
	for i := range out {
		for n, s := range specs {
			if i == 0 {
				began := time.Now()
				g, err := grammar.Compile(ctx, s)
				if err != nil {
					return nil, err
				}
				tables = append(tables, grammar.NewTable(g, j.vocab))
				out[0].Compiled = append(out[0].Compiled, micros(began))
			}
			m := tables[n].Match(false)
			for _, id := range answers[n] {
				began := time.Now()
				if _, err := m.Mask(ctx); err != nil {
					return nil, err
				}
				out[i].Masks = append(out[i].Masks, micros(began))
				if !m.Advance(j.words[id]) {
					return nil, fmt.Errorf("%q does not fit any more", j.words[id])
				}
			}
		}
	}
	return values(out[0], out[1]), nil
}

func micros(since time.Time) float64 { return float64(time.Since(since).Nanoseconds()) / 1000 }
