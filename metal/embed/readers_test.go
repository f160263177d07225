package embed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// recordedReader is what test/oracle/goldens/readers wrote of one tiny model.
type recordedReader struct {
	Name, SHA256 string
	IDs          [][]int32
	Vectors      [][]float64
	Scores       []float64
	Prompted     map[string][]float64
}

func recordedReaders(t *testing.T) map[string]recordedReader {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "readers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var record struct{ Cases []recordedReader }
	if err := json.Unmarshal(b, &record); err != nil {
		t.Fatal(err)
	}
	out := map[string]recordedReader{}
	for _, c := range record.Cases {
		out[c.Name] = c
	}
	if len(out) != len(tinymodel.Readers()) {
		t.Fatalf("%d readers are recorded, there are %d; run test/oracle/goldens/readers/make.sh tiny", len(out), len(tinymodel.Readers()))
	}
	return out
}

// reader is a tiny model that is open.
type reader struct {
	*embed.Model
	t   *testing.T
	b   tensor.Backend
	tok *tokenizer.Tokenizer
}

func write(t *testing.T, r tinymodel.Reader) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openReader(t *testing.T, dir string, b tensor.Backend) *reader {
	t.Helper()
	f, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	source, err := text.Open(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	c, err := embed.ConventionsOf(f, source.Tokenizer, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	var read int64
	done := make(chan int64, 1<<12)
	m, err := embed.Load(context.Background(), b, f, c, func(n int64) { done <- n })
	if err != nil {
		t.Fatal(err)
	}
	for close(done); len(done) > 0; {
		read += <-done
	}
	if facts, err := f.Facts(); err != nil || facts.WeightBytes != read || facts.TaskOf() != c.Task {
		t.Errorf("facts %+v (%v), %d bytes were read for %s", facts, err, read, c.Task)
	}
	t.Cleanup(func() {
		m.Release()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return &reader{Model: m, t: t, b: b, tok: source.Tokenizer}
}

// compute makes passes as large as Fit says.
func (r *reader) compute(inputs []embed.Input) [][]float32 {
	r.t.Helper()
	var out [][]float32
	for len(inputs) > 0 {
		n := r.Fit(inputs)
		some, err := r.Compute(context.Background(), inputs[:n])
		if err != nil {
			r.t.Fatal(err)
		}
		out, inputs = append(out, some...), inputs[n:]
	}
	if held := r.b.Memory(); held.KV != 0 {
		r.t.Errorf("%d bytes of KV are held after all inputs", held.KV)
	}
	return out
}

// Text, Tokens and Pair write whole inputs.
func (r *reader) Text(ctx context.Context, tok *tokenizer.Tokenizer, text string, o embed.Options) (embed.Input, error) {
	in, err := r.Conventions.Text(ctx, tok, text, o)
	return whole(in, err)
}

func (r *reader) Tokens(tok *tokenizer.Tokenizer, ids []int32, o embed.Options) (embed.Input, error) {
	in, err := r.Conventions.Tokens(tok, ids, o)
	return whole(in, err)
}

func (r *reader) Pair(ctx context.Context, tok *tokenizer.Tokenizer, query, document string, o embed.Options) (embed.Input, error) {
	pair, err := r.Pairs(ctx, tok, query, o)
	if err != nil {
		return embed.Input{}, err
	}
	in, err := pair(document)
	return whole(in, err)
}

func whole(t embed.Tokenized, err error) (embed.Input, error) {
	if err != nil {
		return embed.Input{}, err
	}
	return t.Input(), nil
}

// inputs are the texts of all readers as this one wants them, cut where they are
// too long.
func (r *reader) inputs(rerank bool) []embed.Input {
	r.t.Helper()
	texts := tinymodel.ReaderTexts()
	var out []embed.Input
	for i, s := range texts {
		in, err := embed.Input{}, error(nil)
		switch {
		case !rerank:
			in, err = r.Text(context.Background(), r.tok, s, embed.Options{Truncate: true})
		case i > 0:
			in, err = r.Pair(context.Background(), r.tok, texts[0], s, embed.Options{Truncate: true})
		default:
			continue
		}
		if err != nil {
			r.t.Fatalf("%q: %v", s, err)
		}
		out = append(out, in)
	}
	return out
}

// Every recorded model on every back end: all inputs in one batch, and each
// alone.
func TestVectorsAndScoresEqualTheReference(t *testing.T) {
	const tolerance = 2e-5 // of the largest number; scores are numbers themselves
	all := recordedReaders(t)
	for _, b := range backends() {
		for _, c := range tinymodel.Readers() {
			t.Run(b.name+"/"+c.Name, func(t *testing.T) {
				dir, want := write(t, c), all[c.Name]
				if sum, err := tinymodel.Digest(dir); err != nil || sum != want.SHA256 {
					t.Fatalf("the reference read another model (%v); run test/oracle/goldens/readers/make.sh tiny", err)
				}
				r := openReader(t, dir, b.open(t))
				inputs := r.inputs(c.Rerank)
				for i, in := range inputs {
					if !slices.Equal(in.IDs, want.IDs[i]) {
						t.Errorf("input %d has ids %v, want %v", i, in.IDs, want.IDs[i])
					}
				}
				if t.Failed() {
					return
				}
				expected := want.Vectors
				for _, s := range want.Scores {
					expected = append(expected, []float64{s})
				}
				worst := 0.0
				for i, got := range r.compute(inputs) {
					worst = max(worst, off(got, expected[i]), off(r.compute(inputs[i : i+1])[0], expected[i]))
				}
				for name, v := range want.Prompted {
					in, err := r.Text(t.Context(), r.tok, tinymodel.ReaderTexts()[0], embed.Options{Prompt: name})
					if err != nil {
						t.Fatal(err)
					}
					worst = max(worst, off(r.compute([]embed.Input{in})[0], v))
				}
				if !(worst <= tolerance) {
					t.Errorf("off by %.2g of the largest number", worst)
				}
				t.Logf("off by %.1e of the largest number", worst)
			})
		}
	}
}

// off is the largest error, as a part of the largest number, or of 1 for scores.
func off(got []float32, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	top, worst := 0.0, 0.0
	for i, v := range want {
		top, worst = max(top, math.Abs(v)), max(worst, math.Abs(float64(got[i])-v))
		if math.IsNaN(float64(got[i])) {
			return math.Inf(1)
		}
	}
	if len(want) == 1 {
		return worst / max(1, top)
	}
	return worst / top
}

// TestAnInputIsTheSameInCompany on ref, to the bit.
func TestAnInputIsTheSameInCompany(t *testing.T) {
	for _, c := range tinymodel.Readers() {
		r := openReader(t, write(t, c), ref.New(ref.Options{Threads: 3, Poison: true}))
		inputs := r.inputs(c.Rerank)
		for i, got := range r.compute(inputs) {
			alone := r.compute(inputs[i : i+1])[0]
			if !slices.Equal(got, alone) {
				t.Errorf("%s: input %d is another in company", c.Name, i)
			}
		}
	}
}

// TestALongInputOfADecoderGoesInChunks: the same vector and score, however short
// the steps are.
func TestALongInputOfADecoderGoesInChunks(t *testing.T) {
	for _, c := range tinymodel.Readers() {
		if c.Family != "qwen3" {
			continue
		}
		dir := write(t, c)
		whole := openReader(t, dir, ref.New(ref.Options{Threads: 2}))
		pieces := openReader(t, dir, short{Backend: ref.New(ref.Options{Threads: 2}), chunk: 16})
		inputs := whole.inputs(c.Rerank)
		want := whole.compute(inputs)
		for i, got := range pieces.compute(inputs) {
			if !slices.Equal(got, want[i]) {
				t.Errorf("%s: input %d in chunks is another", c.Name, i)
			}
		}
	}
}

// TestAnInputInPartsOfAnySizeIsTheSame, also if a step would take all of it.
func TestAnInputInPartsOfAnySizeIsTheSame(t *testing.T) {
	for _, c := range tinymodel.Readers() {
		if c.Family != "qwen3" {
			continue
		}
		r := openReader(t, write(t, c), ref.New(ref.Options{Threads: 2}))
		for _, p := range poolings() {
			if r.Pooling = p; c.Rerank && p != embed.Default() {
				continue
			}
			for i, in := range r.inputs(c.Rerank) {
				want := make([]float64, 0)
				for _, x := range r.compute([]embed.Input{in})[0] {
					want = append(want, float64(x))
				}
				w := r.Walk(t.Context(), in)
				var got []float32
				for parts := 1; got == nil; parts++ {
					var err error
					if got, err = w.Next(parts); err != nil {
						t.Fatal(err)
					}
				}
				if w.Left() != 0 {
					t.Errorf("%s: %d tokens are left", c.Name, w.Left())
				}
				w.Release()
				near(t, fmt.Sprintf("%s, %v: input %d", c.Name, p, i), got, want)
			}
		}
	}
}

// TestWhatIsTooLongIsRefusedUnlessItMayBeCut names how long it was.
func TestWhatIsTooLongIsRefusedUnlessItMayBeCut(t *testing.T) {
	for _, c := range tinymodel.Readers() {
		if c.Family == "qwen3" {
			continue
		}
		r := openReader(t, write(t, c), ref.New(ref.Options{}))
		long := strings.Repeat("q ", 300)
		_, err := r.Text(t.Context(), r.tok, long, embed.Options{})
		if c.Rerank {
			_, err = r.Pair(t.Context(), r.tok, "a", long, embed.Options{})
		}
		if !errors.Is(err, embed.ErrTooLong) || !strings.Contains(err.Error(), fmt.Sprintf("the model supports %d", r.Limit)) {
			t.Errorf("%s: error %v, want ErrTooLong", c.Name, err)
		}
	}
}

// A client that tokenizes gets the vector of the text, truncated as the text
// is.
func TestTokensEqualTheirText(t *testing.T) {
	for _, c := range tinymodel.Readers() {
		if c.Rerank {
			continue
		}
		r := openReader(t, write(t, c), ref.New(ref.Options{}))
		for _, text := range append(tinymodel.ReaderTexts(), strings.Repeat("long ", 300)) {
			want, err := r.Text(t.Context(), r.tok, text, embed.Options{Truncate: true})
			if err != nil {
				t.Fatal(err)
			}
			prompt := r.Prompts[r.Default]
			ids, err := r.tok.Encode(prompt+text, tokenizer.EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Tokens(r.tok, ids, embed.Options{Truncate: true})
			if err != nil || !slices.Equal(got.IDs, want.IDs) || !slices.Equal(got.Types, want.Types) {
				t.Fatalf("%s: %q as tokens is %v, %v; want %v", c.Name, text, got, err, want)
			}
		}
		for name, try := range map[string]struct {
			ids []int32
			o   embed.Options
			err error
		}{
			"too many":        {ids: slices.Repeat([]int32{7}, 10_000), o: embed.Options{}, err: embed.ErrTooLong},
			"a prompt":        {ids: []int32{7}, o: embed.Options{Prompt: "query"}, err: embed.ErrPrompt},
			"an instruction":  {ids: []int32{7}, o: embed.Options{Instruction: "find"}, err: embed.ErrPrompt},
			"beyond the last": {ids: []int32{7, int32(r.tok.Size())}, o: embed.Options{}},
			"below the first": {ids: []int32{-1}, o: embed.Options{}},
		} {
			if _, err := r.Tokens(r.tok, try.ids, try.o); err == nil || try.err != nil && !errors.Is(err, try.err) {
				t.Errorf("%s, %s: %v", c.Name, name, err)
			}
		}
	}
}

func TestPromptsAndInstructions(t *testing.T) {
	readers := map[string]*reader{}
	for _, c := range tinymodel.Readers() {
		readers[c.Name] = openReader(t, write(t, c), ref.New(ref.Options{}))
	}
	qwen, bert := readers["qwen3 embed"], readers["bert mean"]
	const task = "Given a web search query, retrieve relevant passages that answer the query"
	instructed, err := qwen.Text(t.Context(), qwen.tok, "x", embed.Options{Instruction: task})
	if err != nil {
		t.Fatal(err)
	}
	prompted, err := qwen.Text(t.Context(), qwen.tok, "x", embed.Options{Prompt: "query"})
	if err != nil || !slices.Equal(instructed.IDs, prompted.IDs) {
		t.Errorf("the model's own instruction in words is %v, by its name %v (%v)", instructed.IDs, prompted.IDs, err)
	}
	pair := readers["qwen3 rerank"]
	own, err := pair.Pair(t.Context(), pair.tok, "q", "d", embed.Options{Instruction: task})
	if err != nil {
		t.Fatal(err)
	}
	silent, err := pair.Pair(t.Context(), pair.tok, "q", "d", embed.Options{})
	if err != nil || !slices.Equal(own.IDs, silent.IDs) {
		t.Errorf("a reranker's default instruction is %v, want %v (%v)", silent.IDs, own.IDs, err)
	}
	for name, try := range map[string]func() (embed.Input, error){
		"an unknown prompt": func() (embed.Input, error) {
			return qwen.Text(t.Context(), qwen.tok, "x", embed.Options{Prompt: "title"})
		},
		"both": func() (embed.Input, error) {
			return qwen.Text(t.Context(), qwen.tok, "x", embed.Options{Prompt: "query", Instruction: "y"})
		},
		"a BERT": func() (embed.Input, error) {
			return bert.Text(t.Context(), bert.tok, "x", embed.Options{Instruction: "y"})
		},
		"a cross-encoder": func() (embed.Input, error) {
			r := readers["bert rerank"]
			return r.Pair(t.Context(), r.tok, "x", "y", embed.Options{Instruction: "y"})
		},
	} {
		if _, err := try(); !errors.Is(err, embed.ErrPrompt) {
			t.Errorf("%s: error %v, want ErrPrompt", name, err)
		}
	}
}

// TestAnInputTypeIsTheModelsPromptOfThatKind, by any of the names that makers give
// it; a model without one reads the text alone.
func TestAnInputTypeIsTheModelsPromptOfThatKind(t *testing.T) {
	r := openReader(t, write(t, tinymodel.Readers()[0]), ref.New(ref.Options{}))
	r.Prompts, r.Default = map[string]string{"query": "Q: ", "passage": "P: ", "clustering": "C: ", "usual": "U: "}, ""
	ids := func(text string, o embed.Options) []int32 {
		in, err := r.Text(t.Context(), r.tok, text, o)
		if err != nil {
			t.Fatal(err)
		}
		return in.IDs
	}
	for kind, prompt := range map[string]string{"query": "Q: ", "search_query": "Q: ", "retrieval.query": "Q: ", "document": "P: ", "search_document": "P: ", "passage": "P: ", "clustering": "C: ", "classification": "", "": ""} {
		if got, want := ids("x", embed.Options{InputType: kind}), ids(prompt+"x", embed.Options{}); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", kind, got, want)
		}
	}
	if got, want := ids("x", embed.Options{InputType: "query", Prompt: "clustering"}), ids("C: x", embed.Options{}); !slices.Equal(got, want) {
		t.Errorf("a prompt by its name: %v, want %v", got, want)
	}
	r.Default = "usual"
	if got, want := ids("x", embed.Options{InputType: "classification"}), ids("x", embed.Options{Prompt: "usual"}); !slices.Equal(got, want) {
		t.Errorf("a kind that the model does not know: %v, want %v", got, want)
	}
	if _, err := r.Tokens(r.tok, []int32{7}, embed.Options{InputType: "query"}); !errors.Is(err, embed.ErrPrompt) {
		t.Errorf("a prompt before tokens: %v", err)
	}
	if _, err := r.Tokens(r.tok, []int32{7}, embed.Options{InputType: "classification"}); err != nil {
		t.Errorf("a kind without a prompt before tokens: %v", err)
	}
}

func TestInputsAreCutToFewerTokens(t *testing.T) {
	for _, c := range tinymodel.Readers() {
		r := openReader(t, write(t, c), ref.New(ref.Options{}))
		read := func(text string, o embed.Options) (embed.Input, error) {
			if c.Rerank {
				return r.Pair(t.Context(), r.tok, "a", text, o)
			}
			return r.Text(t.Context(), r.tok, text, o)
		}
		short, err := read("q", embed.Options{})
		if err != nil {
			t.Fatal(err)
		}
		most := len(short.IDs) + 3
		got, err := read(strings.Repeat("q ", 20), embed.Options{Truncate: true, MaxTokens: most})
		if err != nil || len(got.IDs) != most {
			t.Errorf("%s: %d tokens, want %d (%v)", c.Name, len(got.IDs), most, err)
		}
		if got, err := read("q", embed.Options{Truncate: true, MaxTokens: 1 << 30}); err != nil || !slices.Equal(got.IDs, short.IDs) {
			t.Errorf("%s: a limit beyond the model's changes %v to %v (%v)", c.Name, short.IDs, got.IDs, err)
		}
		if _, err := read(strings.Repeat("q ", 20), embed.Options{MaxTokens: most}); !errors.Is(err, embed.ErrTooLong) {
			t.Errorf("%s: %v, want ErrTooLong", c.Name, err)
		}
	}
}

// edit changes one file of a model's folder.
func edit(t *testing.T, dir, name string, change func(map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	v := map[string]any{}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
	}
	change(v)
	if b, err = json.Marshal(v); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func set(key string, v any) func(map[string]any) {
	return func(m map[string]any) {
		if m[key] = v; v == nil {
			delete(m, key)
		}
	}
}

// TestConventionsThatCannotBeKeptAreRefused by name, and what a model is not made
// for.
func TestConventionsThatCannotBeKeptAreRefused(t *testing.T) {
	const (
		bert, pairs, qwen, judge = "bert mean", "bert rerank", "qwen3 embed", "qwen3 rerank"
	)
	for name, c := range map[string]struct {
		reader, file string
		change       func(map[string]any)
		task         model.Task
		want         error
		says         string
	}{
		"no pooling that could be guessed": {reader: bert, file: "modules.json", want: weights.ErrMissing, says: "modules.json"},
		"lower case":                       {reader: bert, file: "sentence_bert_config.json", change: set("do_lower_case", true), want: weights.ErrUnsupported, says: "do_lower_case"},
		"a limit of nothing":               {reader: bert, file: "sentence_bert_config.json", change: set("max_seq_length", 0), want: weights.ErrInvalid, says: "max_seq_length is 0"},
		"a default prompt that is none":    {reader: qwen, file: "config_sentence_transformers.json", change: set("default_prompt_name", "x"), want: weights.ErrInvalid, says: `"x"`},
		"vectors of a reranker":            {reader: pairs, task: model.Embed, want: weights.ErrUnsupported, says: "for Rerank, not for Embed"},
		"scores of an embedder":            {reader: bert, task: model.Rerank, want: weights.ErrUnsupported, says: "for Embed, not for Rerank"},
		"text of an embedder":              {reader: qwen, task: model.Generate, want: weights.ErrUnsupported, says: "for Embed, not for Generate"},
		"a score of another token":         {reader: judge, file: "1_LogitScore/config.json", change: set("true_token_id", 7), want: weights.ErrUnsupported, says: "true_token_id 450"},
		"a score of one token":             {reader: judge, file: "1_LogitScore/config.json", change: set("false_token_id", nil), want: weights.ErrUnsupported, says: "false_token_id 451"},
		"prompts that do not count": {reader: qwen, file: "1_Pooling/config.json", change: func(m map[string]any) {
			m["include_prompt"], m["pooling_mode_lasttoken"], m["pooling_mode_mean_tokens"] = false, false, true
		}, want: weights.ErrUnsupported, says: "include_prompt"},
	} {
		t.Run(name, func(t *testing.T) {
			all := tinymodel.Readers()
			dir := write(t, all[slices.IndexFunc(all, func(r tinymodel.Reader) bool { return r.Name == c.reader })])
			if c.change != nil {
				edit(t, dir, c.file, c.change)
			} else if c.file != "" {
				if err := os.Remove(filepath.Join(dir, c.file)); err != nil {
					t.Fatal(err)
				}
			}
			f, err := weights.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			source, err := text.Open(context.Background(), f)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = embed.ConventionsOf(f, source.Tokenizer, c.task); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %s", err, c.want, c.says)
			}
		})
	}
}

// TestEveryFailingOperationOfAReaderLeavesNothingBehind fails the n-th operation
// for every n.
func TestEveryFailingOperationOfAReaderLeavesNothingBehind(t *testing.T) {
	broken := errors.New("device lost")
	for _, c := range tinymodel.Readers() {
		fail, seen := 0, 0
		r := openReader(t, write(t, c), tensortest.Faulty(ref.New(ref.Options{Poison: true}), func(string) error {
			if seen++; seen == fail {
				return broken
			}
			return nil
		}))
		inputs := r.inputs(c.Rerank)[:2]
		before := r.b.Memory()
		for fail = 1; ; fail++ {
			seen = 0
			_, err := r.Compute(context.Background(), inputs)
			if after := r.b.Memory(); after.Live != before.Live || after.KV != 0 || after.Arrays != before.Arrays {
				t.Fatalf("%s: operation %d failed and left %+v, before it was %+v", c.Name, fail, after, before)
			}
			if err == nil {
				break
			}
			if !errors.Is(err, broken) {
				t.Fatalf("%s: operation %d: error %v, want the back end's", c.Name, fail, err)
			}
		}
		if fail < 30 {
			t.Errorf("%s: only %d operations", c.Name, fail-1)
		}
	}
}

// TestAttackAQueryOfManyDocuments: a long query is tokenized once, not for each document.
func TestAttackAQueryOfManyDocuments(t *testing.T) {
	var r *reader
	for _, c := range tinymodel.Readers() {
		if c.Name == "bert rerank" {
			r = openReader(t, write(t, c), ref.New(ref.Options{}))
		}
	}
	query := strings.Repeat("a man ", 20_000)
	pair, err := r.Pairs(context.Background(), r.tok, query, embed.Options{Truncate: true})
	if err != nil {
		t.Fatal(err)
	}
	const documents = 64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range documents {
		if _, err := pair("b"); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) / documents; took > uint64(len(query))/4 {
		t.Errorf("each document takes %d bytes with a query of %d", took, len(query))
	}
}

// TestTokenizingEndsWithItsRequest also inside of a text.
func TestTokenizingEndsWithItsRequest(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range tinymodel.Readers() {
		r := openReader(t, write(t, c), ref.New(ref.Options{}))
		_, err := r.Text(ended, r.tok, "some text", embed.Options{})
		if c.Rerank {
			_, err = r.Pair(ended, r.tok, "a query", "a document", embed.Options{})
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want context.Canceled", c.Name, err)
		}
		if !c.Rerank {
			continue
		}
		during, end := context.WithCancel(t.Context())
		write, err := r.Pairs(during, r.tok, "a query", embed.Options{})
		if err != nil {
			t.Fatal(err)
		}
		end()
		if _, err := write("a document"); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, a document: error %v, want context.Canceled", c.Name, err)
		}
	}
}
