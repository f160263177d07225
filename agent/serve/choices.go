package serve

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

const (
	// choicesAtOnce of one request are under way: the others wait for these and
	// not in the engine's queue, where they would stand before everybody else.
	choicesAtOnce = 4
	// choicePatience is how long a choice asks again while the engine's queue is
	// full of others.
	choicePatience = time.Minute
)

// several is a form of a route that gives more than one answer.
type several interface {
	form
	// choice makes the chunks of another one.
	choice(i int) form
	// join makes the body that has all of them.
	join(all []choice, u openai.Usage) any
}

// choice is one whole answer.
type choice struct {
	piece
	reason string
}

// formsOf are the forms of so many choices.
func formsOf(first form, n int) []form {
	all := []form{first}
	for i := 1; i < n; i++ {
		all = append(all, first.(several).choice(i))
	}
	return all
}

// body is the whole answer.
func (a answer) body(all []choice, u openai.Usage) any {
	if len(all) == 1 {
		return a.form.whole(all[0].piece, all[0].reason, u)
	}
	return a.form.(several).join(all, u)
}

// openings are the first chunks of all choices.
func (a answer) openings() []any {
	var all []any
	for _, f := range a.forms {
		all = append(all, f.opening())
	}
	return all
}

// event is what one choice brought.
type event struct {
	choice int
	more   *wire.Delta
	end    *wire.Finished
	err    error
}

// used adds up what the choices that ended took. A prompt counts once for its
// choices, of which each has as many.
type used struct {
	usage   openai.Usage
	choices int // for each prompt
	prompts map[int]openai.Usage
	ended   int
	// running counts the output tokens so far of the choices that have not ended.
	running map[int]int
	// failed says that one of them ended with an error.
	failed bool
	// textCalls were returned as text.
	textCalls int
}

func (u *used) add(e event) {
	u.textCalls += int(e.end.GetTextCalls())
	delete(u.running, e.choice)
	of, prompt := usageOf(e.end.GetUsage()), e.choice/max(1, u.choices)
	if u.prompts == nil {
		u.prompts = map[int]openai.Usage{}
	}
	if _, known := u.prompts[prompt]; !known || e.choice%max(1, u.choices) == 0 {
		u.prompts[prompt] = of
	}
	u.ended++
	text, thoughts := u.usage.CompletionTokens+of.CompletionTokens, u.usage.Reasoning()+of.Reasoning()
	tokens, cached := 0, 0
	for _, p := range u.prompts {
		tokens, cached = tokens+p.PromptTokens, cached+p.PromptTokensDetails.CachedTokens
	}
	u.usage = openai.NewUsage(tokens, text)
	u.usage.PromptTokensDetails = &openai.PromptTokensDetails{CachedTokens: cached}
	u.usage.CompletionTokensDetails = &openai.CompletionTokensDetails{ReasoningTokens: thoughts}
}

// grow counts the tokens of a piece.
func (u *used) grow(e event) {
	if u.running == nil {
		u.running = map[int]int{}
	}
	u.running[e.choice] += len(e.more.GetTokens())
}

// soFar is the usage of all choices up to now; prompt is the number of tokens of the
// first prompt.
func (u *used) soFar(prompt int) *openai.Usage {
	text := u.usage.CompletionTokens
	if _, known := u.prompts[0]; known {
		prompt = 0
	}
	for _, n := range u.running {
		text += n
	}
	out := openai.NewUsage(u.usage.PromptTokens+prompt, text)
	return &out
}

// another is the request for a choice. Where the client chose the seed, each
// choice of a prompt has its own, the same ones every time.
func (r *request) another(i int) *wire.GenerateRequest {
	w, each := proto.CloneOf(r.wire), max(1, r.choices)
	w.Id = fmt.Sprintf("%s-%d", r.wire.GetId(), i)
	w.Progress = false // their prompt is one
	if w.GetSampling().Seed != nil {
		seed := w.GetSampling().GetSeed() + int64(i%each)
		w.Sampling.Seed = &seed
	}
	if r.prompts != nil {
		setPrompt(w, r.prompts[i/each])
	}
	return w
}

// begin reads all choices until each has ended, or ctx has; stop ends ctx and
// waits for those who read.
func (a answer) begin(ctx context.Context, cancel context.CancelFunc) (events <-chan event, stop func()) {
	all := make(chan event)
	c := &choices{answer: a, events: all}
	var readers sync.WaitGroup
	readers.Go(func() { c.run(ctx) })
	return all, func() {
		cancel()
		readers.Wait()
	}
}

// choices are the answers to one request. The first has been admitted; the others
// are asked for once it has begun, since by then their prompt has been computed
// and is remembered. Of several prompts, the first choice of each comes before the
// others for the same reason.
type choices struct {
	answer
	events chan<- event
	next   atomic.Int64
}

// run reads the first choice, then beside it the others, some at a time.
func (c *choices) run(ctx context.Context) {
	var others sync.WaitGroup
	defer others.Wait()
	begun := false
	whole := c.read(ctx, 0, c.admitted, func() {
		if begun {
			return
		}
		begun = true
		for range min(choicesAtOnce, len(c.forms)) - 1 {
			others.Go(func() { c.work(ctx) })
		}
	})
	if whole {
		c.work(ctx)
	}
}

// work asks for choices that nobody asked for yet, one after another.
func (c *choices) work(ctx context.Context) {
	for {
		next := int(c.next.Add(1))
		if next >= len(c.forms) {
			return
		}
		each := max(1, c.each)
		prompts := len(c.forms) / each
		i := next%prompts*each + next/prompts
		admitted, err := c.admit(ctx, i)
		if err != nil {
			c.bring(ctx, event{choice: i, err: err})
			return
		}
		if !c.read(ctx, i, admitted, func() {}) {
			return
		}
	}
}

// admit asks for a choice, and again where the engine's queue is full: what was
// begun is not given up for that.
func (c *choices) admit(ctx context.Context, i int) (*admission.Admitted, error) {
	ctx, cancel := context.WithTimeout(ctx, choicePatience)
	defer cancel()
	for {
		admitted, err := c.ask(i)
		r := wire.RefusalOf(err)
		if err == nil || r.GetCode() != wire.Code_CODE_QUEUE_FULL {
			return admitted, err
		}
		again := time.NewTimer(max(time.Millisecond, time.Duration(r.GetRetryAfterMilliseconds())*time.Millisecond))
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, err
		}
	}
}

// read hands on what the engine says of a choice, until its end. It calls begun
// behind everything that it brings, and reports whether the choice came to its
// end.
func (c *choices) read(ctx context.Context, i int, admitted *admission.Admitted, begun func()) bool {
	for {
		e := event{choice: i}
		e.more, e.end, e.err = admitted.Next()
		if !c.bring(ctx, e) || e.err != nil {
			return false
		}
		if e.more.GetProgress() == nil { // else its prompt is still being computed
			begun()
		}
		if e.end != nil {
			return true
		}
	}
}

// bring hands an event on, unless nobody waits for it any more.
func (c *choices) bring(ctx context.Context, e event) bool {
	select {
	case c.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
