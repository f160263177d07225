package responses

import (
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

// Response is the object of this API.
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
	ToolChoice         string            `json:"tool_choice"`
	Tools              []any             `json:"tools"`
	TopP               *float64          `json:"top_p"`
	Truncation         string            `json:"truncation"`
	Usage              *Usage            `json:"usage"`
	User               *string           `json:"user"`
}

// Failure is why a response has no end.
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
		CachedTokens int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens        int `json:"output_tokens"`
	OutputTokensDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

// NewUsage says in this API's words what chats say in theirs.
func NewUsage(u openai.Usage) *Usage {
	out := &Usage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
	if u.PromptTokensDetails != nil {
		out.InputTokensDetails.CachedTokens = u.PromptTokensDetails.CachedTokens
	}
	return out
}

// Deleted is the answer to a deletion.
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
// this order: Opening once, Text for each piece, then Finish or Fail once. It is
// for one stream.
type Answer struct {
	Response Response

	sequence int
	item     string // id of the output's one message
	text     []byte
	open     bool // its item is
}

// NewAnswer begins a response in progress.
func NewAnswer(id string, created int64, r *Request) *Answer {
	a := &Answer{item: newItemID(), Response: Response{ID: id, Object: "response", CreatedAt: created, Status: StatusInProgress,
		Instructions: r.Instructions, MaxOutputTokens: r.MaxOutputTokens, Metadata: r.Metadata, Model: r.Model, Output: []Item{},
		ParallelToolCalls: true, ServiceTier: "default", Store: r.Store, Temperature: r.Temperature, ToolChoice: "auto", Tools: []any{},
		TopP: r.TopP, Truncation: "disabled", User: r.User}}
	if r.Previous != "" {
		a.Response.PreviousResponseID = &r.Previous
	}
	a.Response.Text.Format.Type = "text"
	return a
}

func outputText(text string) Part {
	return Part{Type: "output_text", Text: text, Annotations: &[]any{}, Logprobs: &[]any{}}
}

func (a *Answer) message(status string, parts ...Part) Item {
	return Item{ID: a.item, Type: "message", Role: openai.RoleAssistant, Status: status, Content: append([]Part{}, parts...)}
}

// end sets how a response ended that came to its end; limit says that the limit
// of tokens ended it.
func (a *Answer) end(limit bool, u *Usage) {
	r := &a.Response
	r.Status, r.Usage = StatusCompleted, u
	if limit {
		r.Status, r.IncompleteDetails = StatusIncomplete, &Incomplete{"max_output_tokens"}
	}
	r.Output = []Item{a.message(r.Status, outputText(string(a.text)))}
}

// Whole ends a response that is not streamed.
func (a *Answer) Whole(text string, limit bool, u *Usage) Response {
	a.text = []byte(text)
	a.end(limit, u)
	return a.Response
}

type responseEvent struct {
	Type           string   `json:"type"`
	SequenceNumber int      `json:"sequence_number"`
	Response       Response `json:"response"`
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
	Logprobs       []any   `json:"logprobs"`
}

// next is the number of the next event.
func (a *Answer) next() int {
	a.sequence++
	return a.sequence - 1
}

func (a *Answer) whole(name string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: responseEvent{name, a.next(), a.Response}}
}

func (a *Answer) itemIs(name string, item Item) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: itemEvent{name, a.next(), 0, item}}
}

func (a *Answer) part(name, text string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: partEvent{name, a.next(), a.item, 0, 0, outputText(text)}}
}

func (a *Answer) said(name string, delta, text *string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: textEvent{name, a.next(), a.item, 0, 0, delta, text, []any{}}}
}

// Opening begins a stream.
func (a *Answer) Opening() []openai.NamedEvent {
	return []openai.NamedEvent{a.whole("response.created"), a.whole("response.in_progress")}
}

func (a *Answer) begin() []openai.NamedEvent {
	if a.open {
		return nil
	}
	a.open = true
	return []openai.NamedEvent{a.itemIs("response.output_item.added", a.message(StatusInProgress)), a.part("response.content_part.added", "")}
}

// Text adds text.
func (a *Answer) Text(text string) []openai.NamedEvent {
	out := a.begin()
	a.text = append(a.text, text...)
	return append(out, a.said("response.output_text.delta", &text, nil))
}

// Finish ends a stream.
func (a *Answer) Finish(limit bool, u *Usage) []openai.NamedEvent {
	out := a.begin()
	a.end(limit, u)
	text, name := string(a.text), "response.completed"
	if limit {
		name = "response.incomplete"
	}
	return append(out, a.said("response.output_text.done", nil, &text), a.part("response.content_part.done", text),
		a.itemIs("response.output_item.done", a.Response.Output[0]), a.whole(name))
}

// Fail ends a response that did not come to its end: it failed, or was cancelled.
func (a *Answer) Fail(status string, e *openai.Error) []openai.NamedEvent {
	a.Response.Status, a.Response.Error = status, &Failure{e.Code, e.Message}
	return []openai.NamedEvent{a.whole("response.failed")}
}
