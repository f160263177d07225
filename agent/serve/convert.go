package serve

import (
	"net/http"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// request is a decoded body, ready for the engine.
type request struct {
	form         form  // of the answer; nil for a count
	echo         int64 // bytes that it keeps of the request
	model        string
	stream       bool
	includeUsage bool
	// continuousUsage includes the usage so far in each chunk.
	continuousUsage bool
	wire            *wire.GenerateRequest
	// priority of the request; nil if it sets none.
	priority *int
	// choices is the number of choices per prompt; 0 means one.
	choices int
	// shorten drops the beginning of a conversation that exceeds the context
	// length, at least until its texts have at most limit bytes, if that is not 0. It
	// returns false if nothing more can be dropped; nil drops nothing.
	shorten func(limit int64) bool
	// prompts of a completion; nil if wire has the only one.
	prompts []openai.Prompt
	// answer returns the form of the response, with the model's name in it. Of several choices it
	// stays longer than the body counts, so it keeps nothing of that.
	answer func(model string, created int64) form
	// stored counts the stored items that the request continues or refers to.
	stored intake.Kept
	// held is how many bytes that count has, less what the items of the input take.
	held int64
	// kept is the memory of the request until admitted.
	kept *counted
	// count, if set, returns the response of a route that asks only for the
	// number of prompt tokens.
	count func(promptTokens int) any
}

// admitted drops what only the engine needs, and returns its memory: an answer may take
// hours, and a tenant may have many.
func (r *request) admitted() {
	r.wire, r.prompts, r.shorten, r.answer = nil, nil, nil, nil
	r.kept.release()
}

// forms is the number of choices of all prompts.
func (r *request) forms() int { return max(1, r.choices) * max(1, len(r.prompts)) }

// bytes of what the engine is sent.
func (r *request) bytes() int64 {
	n := int64(proto.Size(r.wire)) + tokenBytes*int64(len(r.wire.GetTokens().GetIds()))
	for _, p := range r.prompts {
		n += promptBytes + int64(len(p.Text)) + tokenBytes*int64(len(p.Tokens))
	}
	return n
}

// promptBytes is what a prompt takes without its text.
const promptBytes = 48

// form builds the response bodies of one route; chat and completions differ only
// in their forms.
type form interface {
	// opening is nil if the route has no opening chunk.
	opening() any
	text(piece) any
	finish(reason string) any
	usage(openai.Usage) any
	// keepAlive returns the event that keeps an idle stream open, with the
	// progress of the prompt if requested and known. Nil means that a comment is
	// sent instead.
	keepAlive(p *openai.PromptProgress) any
	whole(p piece, reason string, u openai.Usage) any
}

// eventForm is a form whose stream consists of named events, the last of which
// ends it. Its finish and usage build one event, so usage is always included.
type eventForm interface {
	form
	// admitted is called first, with the number of prompt tokens and a function
	// that cancels the answer; stopped before the end, with the engine's result;
	// and over at the end, after success or failure.
	admitted(promptTokens int, cancel func())
	stopped(end *wire.Finished)
	over()
	// failed returns the event that ends a stream in progress with an error.
	failed(e *openai.Error, requestID string) any
}

// identified is a form of responses whose id the gateway may assign.
type identified interface {
	form
	identify(id, proof string)
}

// piece is a part of an answer's text, with log-probabilities if requested.
type piece struct {
	text string
	// thoughts are the model's reasoning, apart from its text.
	thoughts string
	ranked   []openai.Ranked
	// prompt is echoed.
	prompt echoed
	// parts are texts and tool calls in their order; text joins the texts.
	parts []part
}

func decodeChat(d *openai.Decoder, _ http.Header, body []byte) (*request, error) {
	r, err := d.Chat(body)
	if err != nil {
		return nil, err
	}
	g := generation(&r.Parameters)
	limit, _ := r.TokenLimit()
	g.MaxTokens = int64(limit)
	if n, ok := r.TopLogprobsWanted(); ok {
		top := int32(n)
		g.TopLogprobs = &top
	}
	chat := &wire.Chat{SplitReasoning: true}
	if err := reason(chat, &r.Reasoning); err != nil {
		return nil, err
	}
	if err := offer(chat, &r.ToolUse); err != nil {
		return nil, err
	}
	for _, m := range r.Messages {
		turn := &wire.ChatMessage{Role: templateRole(m.Role), Content: m.Content.Text(), Name: m.Name}
		if m.Content.Seen() {
			turn.Content = ""
			for _, p := range m.Content.Parts {
				turn.Parts = append(turn.Parts, contentPart(p.Text, p.Image))
			}
		}
		if err := extraOf(m).into(turn); err != nil {
			return nil, err
		}
		chat.Messages = append(chat.Messages, turn)
	}
	g.Input = &wire.GenerateRequest_Chat{Chat: chat}
	usage, logprobs, hidden := r.IncludeUsage(), r.Logprobs, r.Hidden()
	return &request{model: r.Model, stream: r.Stream, includeUsage: usage, continuousUsage: r.ContinuousUsage(), wire: g, priority: r.Priority, choices: r.Choices(),
		answer: func(model string, created int64) form {
			return &chatForm{a: openai.ChatAnswer{ID: openai.NewID(openai.ChatIDPrefix), Created: created, Model: model, IncludeUsage: usage}, logprobs: logprobs, hidden: hidden}
		}}, nil
}

func decodeCompletion(d *openai.Decoder, _ http.Header, body []byte) (*request, error) {
	r, err := d.Completion(body)
	if err != nil {
		return nil, err
	}
	g := generation(&r.Parameters)
	g.MaxTokens = int64(r.TokenLimit())
	g.PromptOnly, g.Echo = g.MaxTokens == 0, r.Echo
	if r.Logprobs != nil {
		top := int32(*r.Logprobs)
		g.TopLogprobs = &top
	}
	setPrompt(g, r.Prompts[0])
	usage, logprobs := r.IncludeUsage(), r.Logprobs != nil
	return &request{model: r.Model, stream: r.Stream, includeUsage: usage, continuousUsage: r.ContinuousUsage(), wire: g, priority: r.Priority, choices: r.Choices(), prompts: r.Prompts,
		answer: func(model string, created int64) form {
			return &completionForm{a: openai.CompletionAnswer{ID: openai.NewID(openai.CompletionIDPrefix), Created: created, Model: model, IncludeUsage: usage}, logprobs: logprobs}
		}}, nil
}

// setPrompt sets the prompt of a request.
func setPrompt(g *wire.GenerateRequest, p openai.Prompt) {
	if p.Tokens != nil {
		g.Input = &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: p.Tokens}}
	} else {
		g.Input = &wire.GenerateRequest_Prompt{Prompt: p.Text}
	}
}

// templateRole is the role that chat templates know: newer clients send
// "developer" for "system".
func templateRole(role string) string {
	if role == openai.RoleDeveloper {
		return openai.RoleSystem
	}
	return role
}

func generation(p *openai.Parameters) *wire.GenerateRequest {
	s := &wire.Sampling{Temperature: float(p.Temperature), TopP: float(p.TopP), MinP: float(p.MinP), Seed: p.Seed}
	s.FrequencyPenalty, s.PresencePenalty, s.RepetitionPenalty = float(p.FrequencyPenalty), float(p.PresencePenalty), float(p.RepetitionPenalty)
	if p.TopK != nil {
		k := int32(max(*p.TopK, 0)) // -1 means 0: all tokens
		s.TopK = &k
	}
	for id, v := range p.LogitBias {
		if s.LogitBias == nil {
			s.LogitBias = map[int32]float32{}
		}
		s.LogitBias[id] = float32(v)
	}
	g := &wire.GenerateRequest{Sampling: s, Stop: p.Stop, Constraint: constraintOf(p.Constraint), IgnoreEos: p.IgnoreEOS, StopTokenIds: p.StopTokens,
		CacheSalt: p.CacheSalt, Progress: p.ReturnProgress}
	if p.MinTokens != nil {
		g.MinTokens = int64(*p.MinTokens)
	}
	return g
}

func constraintOf(c *openai.Constraint) *wire.Constraint {
	if c == nil {
		return nil
	}
	out := &wire.Constraint{Param: c.Param}
	switch c.Kind {
	case openai.ConstraintObject:
		out.Form = &wire.Constraint_JsonObject{JsonObject: true}
	case openai.ConstraintSchema:
		out.Form = &wire.Constraint_JsonSchema{JsonSchema: c.Text}
	case openai.ConstraintRegex:
		out.Form = &wire.Constraint_Regex{Regex: c.Text}
	case openai.ConstraintGrammar:
		out.Form = &wire.Constraint_Grammar{Grammar: c.Text}
	case openai.ConstraintChoice:
		out.Form = &wire.Constraint_Choice{Choice: &wire.Choice{Texts: c.Choices}}
	}
	return out
}

func float(v *float64) *float32 {
	if v == nil {
		return nil
	}
	f := float32(*v)
	return &f
}

func usageOf(u *wire.Usage) openai.Usage {
	out := openai.NewUsage(int(u.GetPromptTokens()), int(u.GetGeneratedTokens()))
	out.PromptTokensDetails = &openai.PromptTokensDetails{CachedTokens: int(u.GetCachedTokens())}
	out.CompletionTokensDetails = &openai.CompletionTokensDetails{ReasoningTokens: int(u.GetReasoningTokens())}
	return out
}

// reasonOf returns the finish reason for clients; ok is false if the text so far
// is not an answer.
func reasonOf(f *wire.Finished) (reason string, ok bool) {
	switch f.GetReason() {
	case wire.FinishReason_FINISH_REASON_STOP:
		return openai.FinishStop, true
	case wire.FinishReason_FINISH_REASON_LENGTH:
		return openai.FinishLength, true
	}
	return "", false
}

// rankedOf returns the log-probabilities of tokens, whose texts an engine may have made long.
func rankedOf(tokens []*wire.TokenLogprobs) []openai.Ranked {
	var out []openai.Ranked
	likely := func(l *wire.Logprob) openai.Likely {
		text := l.GetText()
		return openai.Likely{Bytes: text[:min(len(text), wire.MaxSpelled)], Logprob: l.GetLogprob()}
	}
	for _, t := range tokens {
		r := openai.Ranked{Likely: likely(t.GetChosen())}
		for _, l := range t.GetTop() {
			r.Top = append(r.Top, likely(l))
		}
		out = append(out, r)
	}
	return out
}

// thinker is a form that returns the model's reasoning.
type thinker interface {
	form
	// thinks returns a chunk of reasoning.
	thinks(text string) any
}

type chatForm struct {
	a        openai.ChatAnswer
	logprobs bool // wanted
	hidden   bool // the model's reasoning
	// begun counts tool calls; callable is true if one of them is complete.
	begun    int
	callable bool
}

func (f *chatForm) thinks(text string) any {
	if f.hidden {
		return nil
	}
	return f.a.Reasoning(text)
}

func (f *chatForm) identify(id, _ string)                  { f.a.ID = id }
func (f *chatForm) keepAlive(p *openai.PromptProgress) any { return f.a.KeepAlive(p) }

func (f *chatForm) opening() any             { return f.a.Opening() }
func (f *chatForm) finish(reason string) any { return f.a.Finish(calling(reason, f.callable)) }

// calls returns the chunk for a part of a tool call.
func (f *chatForm) calls(c *wire.CallDelta) any {
	if c.GetEnded() && c.GetWritten() == "" {
		f.callable = true
	}
	switch {
	case c.GetName() != "":
		f.begun++
		return f.a.Call(f.begun-1, c.GetName(), c.GetArguments())
	case c.GetArguments() != "":
		return f.a.Arguments(f.begun-1, c.GetArguments())
	}
	return nil
}
func (f *chatForm) usage(u openai.Usage) any { return f.a.Usage(u) }

func (f *chatForm) text(p piece) any {
	c := f.a.Text(p.text)
	if f.logprobs {
		c.Choices[0].Logprobs = openai.NewChatLogprobs(p.ranked)
	}
	return c
}

func (f *chatForm) whole(p piece, reason string, u openai.Usage) any {
	c := f.a.Whole(p.text, reason, u)
	m := &c.Choices[0].Message
	if !f.hidden {
		m.ReasoningText = openai.NewReasoningText(p.thoughts)
	}
	for _, one := range p.parts {
		if one.call != nil {
			m.ToolCalls = append(m.ToolCalls, openai.NewToolCall(one.call.name, one.call.arguments))
		}
	}
	if len(m.ToolCalls) > 0 && p.text == "" {
		m.Content = nil
	}
	c.Choices[0].FinishReason = calling(reason, len(m.ToolCalls) > 0)
	if f.logprobs {
		c.Choices[0].Logprobs = openai.NewChatLogprobs(p.ranked)
	}
	return c
}

func (f *chatForm) choice(i int) form {
	other := *f
	other.a.Index = i
	return &other
}

func (f *chatForm) join(all []choice, u openai.Usage) any {
	var out openai.ChatCompletion
	for i, c := range all {
		one := f.choice(i).whole(c.piece, c.reason, u).(openai.ChatCompletion)
		one.Choices = append(out.Choices, one.Choices...)
		out = one
	}
	return out
}

type completionForm struct {
	a        openai.CompletionAnswer
	logprobs bool // wanted
	offsets  openai.CompletionOffsets
	// prompt is returned before the answer.
	prompt echoed
}

// echoed is a prompt that is returned, with log-probabilities if requested.
type echoed struct {
	text   []byte // comes in many parts
	ranked []openai.Ranked
}

func (e *echoed) add(d *wire.PromptDelta) {
	e.text = append(e.text, d.GetText()...)
	e.ranked = append(e.ranked, rankedOf(d.GetLogprobs())...)
}

// echoes is a form that returns the prompt before the answer.
type echoes interface {
	form
	// echo adds a part of the prompt, and echoed returns a chunk of all parts,
	// once; it is nil if there is none.
	echo(d *wire.PromptDelta)
	echoed() any
}

func (f *completionForm) echo(d *wire.PromptDelta) { f.prompt.add(d) }

func (f *completionForm) echoed() any {
	if len(f.prompt.text) == 0 {
		return nil
	}
	c := f.a.Text(string(f.prompt.text))
	c.Choices[0].Logprobs = f.promptLogprobs(f.prompt)
	f.prompt = echoed{}
	return c
}

func (f *completionForm) opening() any { return nil }

func (f *completionForm) promptLogprobs(p echoed) *openai.CompletionLogprobs {
	if !f.logprobs || len(p.text) == 0 {
		return nil
	}
	return f.offsets.Prompt(string(p.text), p.ranked)
}

func (f *completionForm) identify(id, _ string)                  { f.a.ID = id }
func (f *completionForm) keepAlive(p *openai.PromptProgress) any { return f.a.KeepAlive(p) }

func (f *completionForm) finish(reason string) any { return f.a.Finish(reason) }
func (f *completionForm) usage(u openai.Usage) any { return f.a.Usage(u) }

func (f *completionForm) text(p piece) any { return f.withLogprobs(f.a.Text(p.text), p) }

func (f *completionForm) whole(p piece, reason string, u openai.Usage) any {
	before := f.promptLogprobs(p.prompt)
	c := f.withLogprobs(f.a.Whole(string(p.prompt.text)+p.text, reason, u), p)
	c.Choices[0].Logprobs = before.Join(c.Choices[0].Logprobs)
	return c
}

func (f *completionForm) withLogprobs(c openai.Completion, p piece) openai.Completion {
	if f.logprobs {
		c.Choices[0].Logprobs = f.offsets.Logprobs(p.ranked)
	}
	return c
}

func (f *completionForm) choice(i int) form {
	one := &completionForm{a: f.a, logprobs: f.logprobs}
	one.a.Index = i
	return one
}

func (f *completionForm) join(all []choice, u openai.Usage) any {
	var out openai.Completion
	for i, c := range all {
		one := f.choice(i).whole(c.piece, c.reason, u).(openai.Completion)
		one.Choices = append(out.Choices, one.Choices...)
		out = one
	}
	return out
}
