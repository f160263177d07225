package serve

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// choicePatience is how long a choice is retried while the engine's queue is full, and choicePause the
// least pause before that, doubled each time up to mostChoicePause: an engine names any.
const (
	choicePatience  = time.Minute
	choicePause     = 100 * time.Millisecond
	mostChoicePause = 2 * time.Second
)

// several is a form that can return more than one choice.
type several interface {
	form
	// choice returns the form of another choice.
	choice(i int) form
	// join returns the body with all choices.
	join(all []choice, u openai.Usage) any
}

// choice is one complete choice.
type choice struct {
	piece
	reason string
}

// formsOf returns the forms of n choices.
func formsOf(first form, n int) []form {
	all := []form{first}
	for i := 1; i < n; i++ {
		all = append(all, first.(several).choice(i))
	}
	return all
}

// body returns the response body with all choices.
func (a answer) body(all []choice, u openai.Usage) any {
	if len(all) == 1 {
		return a.form.whole(all[0].piece, all[0].reason, u)
	}
	return a.form.(several).join(all, u)
}

// openings returns the first chunks of all choices.
func (a answer) openings() []any {
	var all []any
	for _, f := range a.forms {
		all = append(all, f.opening())
	}
	return all
}

// event is an event of one choice.
type event struct {
	choice int
	more   *wire.Delta
	end    *wire.Finished
	err    error
	// written ends the count of a large event.
	written func()
}

// used sums the usage of the choices that ended. A prompt counts once for all of
// its choices.
type used struct {
	usage   openai.Usage
	choices int // for each prompt
	prompts map[int]openai.Usage
	ended   int
	// running counts the output tokens so far of the choices that have not ended.
	running map[int]int
	// failed is true if a choice ended with an error.
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

// grow counts the tokens of a chunk.
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

// another returns the request for another choice, which shares its input: images may take as
// much as a request body. If the client set the seed, each choice of a prompt gets its own,
// the same ones every time.
func (r *request) another(i int) *wire.GenerateRequest {
	w, each := new(wire.GenerateRequest), max(1, r.choices)
	r.wire.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		w.ProtoReflect().Set(field, v)
		return true
	})
	w.Id = fmt.Sprintf("%s-%d", r.wire.GetId(), i)
	w.Progress = false // they share one prompt
	if w.GetSampling().Seed != nil {
		seed := w.GetSampling().GetSeed() + int64(i%each)
		w.Sampling = proto.CloneOf(w.Sampling)
		w.Sampling.Seed = &seed
	}
	if r.prompts != nil {
		setPrompt(w, r.prompts[i/each])
	}
	return w
}

// begin reads all choices until each has ended, or ctx has; stop ends ctx and
// waits for the readers.
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
// are requested once it has begun, because their prompt is cached by then. Of
// several prompts the first choice of each comes first, for the same reason.
type choices struct {
	answer
	events chan<- event
	next   atomic.Int64
	// asking is held until the engine has admitted a choice: until then the engine, and the
	// message to it, have all of the request once more.
	asking sync.Mutex
}

// run reads the first choice, and then the others at the same time, a few at a
// time.
func (c *choices) run(ctx context.Context) {
	var others sync.WaitGroup
	defer others.Wait()
	begun := false
	whole := c.read(ctx, 0, c.admitted, func() {
		if begun {
			return
		}
		begun = true
		for range min(agentapi.ChoicesAtOnce, len(c.forms)) - 1 {
			others.Go(func() { c.work(ctx) })
		}
	})
	if whole {
		c.work(ctx)
	}
}

// work requests the remaining choices one after another.
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

// admit requests a choice, and retries while the engine's queue is full: the
// choices in progress are not given up for that.
func (c *choices) admit(ctx context.Context, i int) (*admission.Admitted, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, choicePatience)
	defer cancel()
	for pause := choicePause; ; pause = min(2*pause, mostChoicePause) {
		admitted, err := c.ask(i)
		r := wire.RefusalOf(err)
		if err == nil || r.GetCode() != wire.Code_CODE_QUEUE_FULL {
			return admitted, err
		}
		named := min(r.GetRetryAfterMilliseconds(), choicePatience.Milliseconds())
		again := time.NewTimer(max(pause, time.Duration(named)*time.Millisecond))
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, err
		}
	}
}

// read forwards the engine's events of a choice, until its end. It calls begun
// after the first event with content, and reports whether the choice ended.
func (c *choices) read(ctx context.Context, i int, admitted *admission.Admitted, begun func()) bool {
	for {
		e := event{choice: i}
		e.more, e.end, e.err = admitted.Next()
		if e.err == nil {
			e.written, e.err = c.kept.writing(e.more)
		}
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

// bring forwards an event, unless ctx has ended.
func (c *choices) bring(ctx context.Context, e event) bool {
	select {
	case c.events <- e:
		return true
	case <-ctx.Done():
		if e.written != nil {
			e.written()
		}
		return false
	}
}
