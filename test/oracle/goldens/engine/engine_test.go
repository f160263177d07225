//go:build oracle

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/backends"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// tolerance of logits and log-probabilities, and the least margin at which greedy must
// agree.
const tolerance = 2e-2

// golden is the file that make.py writes.
type golden struct {
	MadeBy string
	Cases  []goldenCase
}

type goldenCase struct {
	Question string
	Text     string
	Tokens   []int32
	Top      []struct {
		ID    int32
		Logit float64
	}
	// Logprobs of all tokens but the first.
	Logprobs []float64
	Greedy   []int32
	Margins  []float64
}

var (
	modelPath = flag.String("model", "../../../../.cache/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "model file or folder (hack/models/fetch.sh smollm2 fetches it)")
	record    = flag.String("golden", "testdata/smollm2.json", "what the reference computed")
	backend   = flag.String("backend", "ref", "back end that computes: "+strings.Join(backends.Names(), " or "))
)

func TestRealWeightsGiveTheReferencesTokensAndLogits(t *testing.T) {
	if err := run(t.Context(), *modelPath, *record, *backend); err != nil {
		t.Fatal(err)
	}
}

func run(ctx context.Context, model, path, backend string) (err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var g golden
	if err := json.Unmarshal(b, &g); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(g.Cases) == 0 {
		return fmt.Errorf("%s holds no case", path)
	}
	one, err := backends.Open(backend, backends.Options{})
	if err != nil {
		return err
	}
	two, err := backends.Open(backend, backends.Options{})
	if err != nil {
		return err
	}
	s, err := engine.OpenSession(ctx, model, one)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	e := engine.Start(engine.Options{ModelPath: model, Backend: two})
	defer func() { e.Shutdown(ctx); err = errors.Join(err, e.Wait()) }()
	if err := e.AwaitReady(ctx); err != nil {
		return err
	}
	tok, err := openTokenizer(ctx, model)
	if err != nil {
		return err
	}
	worst, worstRanked, compared, ranked := 0.0, 0.0, 0, 0
	for _, c := range g.Cases {
		d, n, err := check(ctx, e, s, tok, c)
		if err != nil {
			return fmt.Errorf("case %.40q: %w", c.Question+c.Text, err)
		}
		worst, compared = max(worst, d), compared+n
		if d, err = echoed(ctx, e, c); err != nil {
			return fmt.Errorf("case %.40q, echoed: %w", c.Question+c.Text, err)
		}
		ranked, worstRanked = ranked+len(c.Logprobs), max(worstRanked, d)
	}
	fmt.Printf("%s, %s: %d cases equal to %s: token ids exact, %d greedy tokens equal, worst of the %d largest logits off by %.5f, of %d log-probabilities of prompts by %.5f (tolerance %g)\n",
		filepath.Base(model), backend, len(g.Cases), g.MadeBy, compared, len(g.Cases[0].Top), worst, ranked, worstRanked, tolerance)
	return nil
}

// echoed returns the worst difference of a log-probability of the prompt.
func echoed(ctx context.Context, e *engine.Engine, c goldenCase) (worst float64, err error) {
	none := 0
	stream, err := e.Generate(ctx, engine.Request{Tokens: c.Tokens, Echo: true, PromptOnly: true, Logprobs: &none})
	if err != nil {
		return 0, err
	}
	var got []sample.Ranked
	for {
		ev, err := stream.Next(ctx)
		if err != nil {
			return 0, err
		}
		got = append(got, ev.PromptLogprobs...)
		if ev.Finished == nil {
			continue
		}
		if ev.Finished.Err != nil {
			return 0, ev.Finished.Err
		}
		break
	}
	if len(got) != len(c.Tokens) || len(c.Logprobs) != len(c.Tokens)-1 {
		return 0, fmt.Errorf("%d log-probabilities of %d tokens, the reference has %d", len(got), len(c.Tokens), len(c.Logprobs))
	}
	for i, want := range c.Logprobs {
		d := math.Abs(got[i+1].Chosen.Logprob - want)
		if got[i+1].Chosen.ID != c.Tokens[i+1] || !(d <= tolerance) {
			return 0, fmt.Errorf("token %d of the prompt is %+v, the reference has %v", i+1, got[i+1].Chosen, want)
		}
		worst = max(worst, d)
	}
	return worst, nil
}

func openTokenizer(ctx context.Context, model string) (*tokenizer.Tokenizer, error) {
	f, err := weights.Open(model)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := text.Open(ctx, f)
	if err != nil {
		return nil, err
	}
	return t.Tokenizer, nil
}

// request asks for a case. A prompt is plain text to the engine and may hold
// control tokens to the reference: such a prompt goes in as ids, once our
// tokenizer has found the same ones.
func request(tok *tokenizer.Tokenizer, c goldenCase) (engine.Request, error) {
	greedy := sample.Greedy()
	req := engine.Request{Sampling: &greedy, MaxTokens: len(c.Greedy), Prompt: &c.Text}
	if c.Question != "" {
		req.Prompt, req.Chat = nil, &text.Chat{Messages: []chat.Message{{Role: "user", Content: c.Question}}}
		return req, nil
	}
	ids, err := tok.Encode(c.Text, tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil {
		return req, err
	}
	if !slices.Equal(ids, c.Tokens) {
		return req, fmt.Errorf("the text is tokens %v, the reference has %v", ids, c.Tokens)
	}
	plain, err := tok.Encode(c.Text, tokenizer.EncodeOptions{})
	if err != nil {
		return req, err
	}
	if !slices.Equal(plain, ids) {
		req.Prompt, req.Tokens = nil, ids
	}
	return req, nil
}

// check returns the worst difference of a logit and how many greedy tokens
// were compared.
func check(ctx context.Context, e *engine.Engine, s *engine.Session, tok *tokenizer.Tokenizer, c goldenCase) (worst float64, compared int, err error) {
	req, err := request(tok, c)
	if err != nil {
		return 0, 0, err
	}
	stream, err := e.Generate(ctx, req)
	if err != nil {
		return 0, 0, err
	}
	if got := stream.Prompt(); !slices.Equal(got, c.Tokens) {
		return 0, 0, fmt.Errorf("the prompt is tokens %v, the reference has %v", got, c.Tokens)
	}
	var tokens []int32
	for {
		ev, err := stream.Next(ctx)
		if err != nil {
			return 0, 0, err
		}
		tokens = append(tokens, ev.Tokens...)
		if ev.Finished != nil {
			if ev.Finished.Err != nil {
				return 0, 0, ev.Finished.Err
			}
			if ev.Finished.Usage.Generated > len(tokens) {
				tokens = append(tokens, 2) // the end of the turn
			}
			break
		}
	}
	for i, want := range c.Greedy {
		if c.Margins[i] <= tolerance {
			break // from here on the texts may part
		}
		if i >= len(tokens) || tokens[i] != want {
			return 0, 0, fmt.Errorf("greedy tokens are %v, the reference has %v", tokens, c.Greedy)
		}
		compared++
	}
	values, err := s.Evaluate(ctx, c.Tokens)
	if err != nil {
		return 0, 0, err
	}
	for _, want := range c.Top {
		d := math.Abs(float64(values[want.ID]) - want.Logit)
		if !(d <= tolerance) {
			return 0, 0, fmt.Errorf("logit of token %d is %v, the reference has %v", want.ID, values[want.ID], want.Logit)
		}
		worst = max(worst, d)
	}
	return worst, compared, nil
}
