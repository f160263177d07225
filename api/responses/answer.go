package responses

import (
	"net/http"

	"metalfleet.dev/metalfleet/api/openai"
)

// Statuses of a response.
const (
	StatusInProgress = "in_progress"
	StatusCompleted  = "completed"
	StatusIncomplete = "incomplete"
	StatusFailed     = "failed"
	StatusCancelled  = "cancelled"
)

// Response is the response object of this API.
type Response struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	Status             string            `json:"status"`
	Background         bool              `json:"background"`
	Error              *Failure          `json:"error"`
	IncompleteDetails  *Incomplete       `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	MaxOutputTokens    *int              `json:"max_output_tokens"`
	Metadata           map[string]string `json:"metadata"`
	Model              string            `json:"model"`
	Output             []Item            `json:"output"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	PreviousResponseID *string           `json:"previous_response_id"`
	Reasoning          reasoning         `json:"reasoning"`
	ServiceTier        string            `json:"service_tier"`
	Store              bool              `json:"store"`
	Temperature        *float64          `json:"temperature"`
	Text               textFormat        `json:"text"`
	// ToolChoice is a string, or an object that names a function.
	ToolChoice any        `json:"tool_choice"`
	Tools      []function `json:"tools"`
	TopP       *float64   `json:"top_p"`
	Truncation string     `json:"truncation"`
	Usage      *Usage     `json:"usage"`
	User       *string    `json:"user"`
}

// Failure is why a response failed.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Incomplete is why a response ended early.
type Incomplete struct {
	Reason string `json:"reason"`
}

type reasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

type textFormat struct {
	Format struct {
		Type string `json:"type"`
	} `json:"format"`
}

// Usage counts tokens.
type Usage struct {
	InputTokens        int `json:"input_tokens"`
	InputTokensDetails struct {
		// CacheWriteTokens is always 0, because writing to the cache is not billed.
		CacheWriteTokens int `json:"cache_write_tokens"`
		CachedTokens     int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens        int `json:"output_tokens"`
	OutputTokensDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

// NewUsage converts the usage of a chat completion to this API.
func NewUsage(u openai.Usage) *Usage {
	out := &Usage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
	if u.PromptTokensDetails != nil {
		out.InputTokensDetails.CachedTokens = u.PromptTokensDetails.CachedTokens
	}
	return out
}

// Deleted is the response to a deletion.
type Deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// ItemList is a page of input items.
type ItemList struct {
	Object  string  `json:"object"`
	Data    []Item  `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// Answer builds the response to one request, whole or as events, which come in
// this order: Opening once; Thinking, Text, and Call, Arguments and EndCall for
// each delta; Finish or Fail once. An Answer serves one stream.
type Answer struct {
	Response Response

	sequence int
	// items are the complete items; item is the current one, and text is its
	// text or its arguments.
	items []Item
	item  *Item
	text  []byte
}

// NewAnswer returns a response in progress.
func NewAnswer(id string, created int64, r *Request) *Answer {
	a := &Answer{Response: Response{ID: id, Object: "response", CreatedAt: created, Status: StatusInProgress,
		Instructions: r.Instructions, MaxOutputTokens: r.MaxOutputTokens, Metadata: r.Metadata, Model: r.Model, Output: []Item{},
		ParallelToolCalls: !r.Use.Single, ServiceTier: "default", Store: r.Store, Temperature: r.Temperature, ToolChoice: choiceOf(r.Use), Tools: toolsOf(r.Use),
		TopP: r.TopP, Truncation: "disabled", User: r.User}}
	if r.Previous != "" {
		a.Response.PreviousResponseID = &r.Previous
	}
	if r.Effort != "" {
		a.Response.Reasoning.Effort = &r.Effort
	}
	a.Response.Text.Format.Type = "text"
	return a
}

// partThought is the type of a part that holds reasoning.
const partThought = "reasoning_text"

// partOf returns a part for an item of this type.
func partOf(kind, text string) Part {
	if kind == ItemReasoning {
		return Part{Type: partThought, Text: text}
	}
	return Part{Type: "output_text", Text: text, Annotations: &[]any{}, Logprobs: &[]any{}}
}

type responseEvent struct {
	Type           string   `json:"type"`
	SequenceNumber int      `json:"sequence_number"`
	Response       Response `json:"response"`
	// Progress of the prompt, where the client asked for it.
	Progress *openai.PromptProgress `json:"prompt_progress,omitempty"`
}

type itemEvent struct {
	Type           string `json:"type"`
	SequenceNumber int    `json:"sequence_number"`
	OutputIndex    int    `json:"output_index"`
	Item           Item   `json:"item"`
}

type partEvent struct {
	Type           string `json:"type"`
	SequenceNumber int    `json:"sequence_number"`
	ItemID         string `json:"item_id"`
	OutputIndex    int    `json:"output_index"`
	ContentIndex   int    `json:"content_index"`
	Part           Part   `json:"part"`
}

type textEvent struct {
	Type           string  `json:"type"`
	SequenceNumber int     `json:"sequence_number"`
	ItemID         string  `json:"item_id"`
	OutputIndex    int     `json:"output_index"`
	ContentIndex   int     `json:"content_index"`
	Delta          *string `json:"delta,omitempty"`
	Text           *string `json:"text,omitempty"`
	// Logprobs of output_text is always present and empty.
	Logprobs []any `json:"logprobs,omitzero"`
}

type argumentsEvent struct {
	Type           string  `json:"type"`
	SequenceNumber int     `json:"sequence_number"`
	ItemID         string  `json:"item_id"`
	OutputIndex    int     `json:"output_index"`
	Delta          *string `json:"delta,omitempty"`
	Name           string  `json:"name,omitempty"`
	Arguments      *string `json:"arguments,omitempty"`
}

// next returns the sequence number of the next event.
func (a *Answer) next() int {
	a.sequence++
	return a.sequence - 1
}

func (a *Answer) whole(name string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: responseEvent{Type: name, SequenceNumber: a.next(), Response: a.Response}}
}

func (a *Answer) itemIs(name string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: itemEvent{name, a.next(), len(a.items), *a.item}}
}

func (a *Answer) part(name, text string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: partEvent{name, a.next(), a.item.ID, len(a.items), 0, partOf(a.item.Type, text)}}
}

// said returns the event for text of the current item: a delta, or all of it.
func (a *Answer) said(delta, text *string) openai.NamedEvent {
	name, likely := "response.output_text", []any{}
	if a.item.Type == ItemReasoning {
		name, likely = "response.reasoning_text", nil
	}
	if name += ".delta"; delta == nil {
		name = name[:len(name)-len("delta")] + "done"
	}
	return openai.NamedEvent{Name: name, Data: textEvent{name, a.next(), a.item.ID, len(a.items), 0, delta, text, likely}}
}

// Follow makes the next event the one after that many, which were sent elsewhere.
func (a *Answer) Follow(events int) { a.sequence = events }

// Opening begins a stream.
func (a *Answer) Opening() []openai.NamedEvent {
	return []openai.NamedEvent{a.whole("response.created"), a.whole("response.in_progress")}
}

// KeepAlive returns an event that keeps an idle stream open, after Opening: clients
// count it as activity, and their accumulators add nothing. That is the response
// with its complete items; within an item, whose text an accumulator would lose by
// that, it is an empty delta. It returns nil where there is no such event.
func (a *Answer) KeepAlive(p *openai.PromptProgress) []openai.NamedEvent {
	empty := ""
	switch {
	case a.item == nil:
		const name = "response.in_progress"
		r := a.Response
		r.Output = append(r.Output, a.items...)
		return []openai.NamedEvent{{Name: name, Data: responseEvent{name, a.next(), r, p}}}
	case a.item.Type == ItemCall:
		return a.Arguments("")
	case a.item.Type == ItemMessage, a.item.Type == ItemReasoning:
		return []openai.NamedEvent{a.said(&empty, nil)}
	}
	return nil
}

// begin opens an item of this type, unless it is the current one.
func (a *Answer) begin(kind string) []openai.NamedEvent {
	if a.item != nil && a.item.Type == kind {
		return nil
	}
	out := a.close(StatusCompleted)
	i := newItem(kind)
	i.Status, i.Content = StatusInProgress, []Part{}
	if kind == ItemMessage {
		i.Role = openai.RoleAssistant
	} else {
		i.Summary = []Part{}
	}
	a.item, a.text = &i, nil
	return append(out, a.itemIs("response.output_item.added"), a.part("response.content_part.added", ""))
}

// close ends the current item.
func (a *Answer) close(status string) []openai.NamedEvent {
	if a.item == nil {
		return nil
	}
	a.item.Status = status
	text := string(a.text)
	var out []openai.NamedEvent
	if a.item.Type == ItemCall {
		const name = "response.function_call_arguments.done"
		a.item.Arguments = &text
		out = append(out, openai.NamedEvent{Name: name, Data: argumentsEvent{Type: name, SequenceNumber: a.next(), ItemID: a.item.ID, OutputIndex: len(a.items), Name: a.item.Name, Arguments: &text}})
	} else {
		out = append(out, a.said(nil, &text), a.part("response.content_part.done", text))
		a.item.Content = []Part{partOf(a.item.Type, text)}
	}
	out = append(out, a.itemIs("response.output_item.done"))
	a.items = append(a.items, *a.item)
	a.item, a.text = nil, nil
	return out
}

// Text adds text.
func (a *Answer) Text(text string) []openai.NamedEvent { return a.say(ItemMessage, text) }

// Thinking adds reasoning.
func (a *Answer) Thinking(text string) []openai.NamedEvent { return a.say(ItemReasoning, text) }

func (a *Answer) say(kind, text string) []openai.NamedEvent {
	out := a.begin(kind)
	a.text = append(a.text, text...)
	return append(out, a.said(&text, nil))
}

// Call begins a tool call.
func (a *Answer) Call(name string) []openai.NamedEvent {
	out := a.close(StatusCompleted)
	i := newItem(ItemCall)
	i.Status, i.CallID, i.Name, i.Arguments = StatusInProgress, openai.NewID(openai.CallIDPrefix), name, new(string)
	a.item = &i
	return append(out, a.itemIs("response.output_item.added"))
}

// Arguments adds to the arguments of the current call.
func (a *Answer) Arguments(text string) []openai.NamedEvent {
	const name = "response.function_call_arguments.delta"
	a.text = append(a.text, text...)
	return []openai.NamedEvent{{Name: name, Data: argumentsEvent{Type: name, SequenceNumber: a.next(), ItemID: a.item.ID, OutputIndex: len(a.items), Delta: &text}}}
}

// EndCall ends the current call; an incomplete call must not be executed.
func (a *Answer) EndCall(whole bool) []openai.NamedEvent {
	if whole {
		return a.close(StatusCompleted)
	}
	return a.close(StatusIncomplete)
}

// Finish ends a completed response; limit reports whether the token limit ended
// it.
func (a *Answer) Finish(limit bool, u *Usage) []openai.NamedEvent {
	r, name := &a.Response, "response.completed"
	r.Status, r.Usage = StatusCompleted, u
	if limit {
		name = "response.incomplete"
		r.Status, r.IncompleteDetails = StatusIncomplete, &Incomplete{"max_output_tokens"}
	}
	var out []openai.NamedEvent
	if len(a.items) == 0 && a.item == nil {
		out = a.begin(ItemMessage)
	}
	out = append(out, a.close(r.Status)...)
	r.Output = a.items
	return append(out, a.whole(name))
}

// Fail ends a response that failed or was cancelled.
func (a *Answer) Fail(status string, e *openai.Error) []openai.NamedEvent {
	a.Response.Status, a.Response.Error = status, nil
	if status != StatusCancelled {
		a.Response.Error = &Failure{failureCode(e), e.Message}
	}
	return []openai.NamedEvent{a.whole("response.failed")}
}

// failureCode returns the error code of this API for an error. Clients accept
// only a fixed list of codes.
func failureCode(e *openai.Error) string {
	switch {
	case e.Status == http.StatusTooManyRequests:
		return "rate_limit_exceeded"
	case e.Status >= http.StatusInternalServerError:
		return "server_error"
	}
	return "invalid_prompt"
}
