package responses

import (
	"net/http"

	"metalfleet.dev/metalfleet/api/openai"
)

// Answer builds the response to one request, whole or as events, which come in
// this order: Opening once; Thinking, Text, and Call, Arguments and EndCall for
// each delta; Finish or Fail once. An Answer serves one stream.
type Answer struct {
	Response Response
	// Mac stores the response; the ids of its items contain its name.
	Mac string

	names    map[string]ToolName
	logprobs bool // wanted
	sequence int
	// items are the complete items; item is the current one, and text is its
	// text, its arguments or its input.
	items []Item
	item  *Item
	text  []byte
	// likely are the log-probabilities of the current text, raw reads the input of
	// the current custom tool.
	likely []openai.ChatLogprob
	raw    rawInput
}

// NewAnswer returns a response in progress.
func NewAnswer(id string, created int64, r *Request) *Answer {
	return &Answer{Response: newResponse(id, created, r), names: r.Names, logprobs: r.Logprobs}
}

// partThought is the type of a part that holds reasoning.
const partThought = "reasoning_text"

// part returns a part for the current item.
func (a *Answer) part(text string, likely []openai.ChatLogprob) Part {
	if a.item.Type == ItemReasoning {
		return Part{Type: partThought, Text: text}
	}
	if likely == nil {
		likely = []openai.ChatLogprob{}
	}
	return Part{Type: "output_text", Text: text, Annotations: &[]any{}, Logprobs: &likely}
}

// Text adds text, with the log-probabilities of its tokens, if there are any.
func (a *Answer) Text(text string, ranked ...openai.Ranked) []openai.NamedEvent {
	var likely []openai.ChatLogprob
	if a.logprobs {
		likely = openai.NewChatLogprobs(ranked).Content
	}
	return a.say(ItemMessage, text, likely)
}

// Thinking adds reasoning.
func (a *Answer) Thinking(text string) []openai.NamedEvent { return a.say(ItemReasoning, text, nil) }

func (a *Answer) say(kind, text string, likely []openai.ChatLogprob) []openai.NamedEvent {
	out := a.begin(kind)
	a.text, a.likely = append(a.text, text...), append(a.likely, likely...)
	return append(out, a.said(&text, nil, likely))
}

// open makes an item the current one.
func (a *Answer) open(kind string) *Item {
	i := newItem(kind, a.Mac)
	i.Status = StatusInProgress
	a.item, a.text, a.likely, a.raw = &i, nil, nil, rawInput{}
	return a.item
}

// begin opens an item of this type, unless it is the current one.
func (a *Answer) begin(kind string) []openai.NamedEvent {
	if a.item != nil && a.item.Type == kind {
		return nil
	}
	out := a.close(StatusCompleted)
	i := a.open(kind)
	i.Content = []Part{}
	if kind == ItemMessage {
		i.Role = openai.RoleAssistant
	} else {
		i.Summary = []Part{}
	}
	return append(out, a.itemIs("response.output_item.added"), a.partIs("response.content_part.added", a.part("", nil)))
}

// Call begins a call of the function that stands for a tool.
func (a *Answer) Call(function string) []openai.NamedEvent {
	out := a.close(StatusCompleted)
	of, known := a.names[function]
	if !known {
		of.Name = function
	}
	kind, text := ItemCall, new(string)
	if of.Custom {
		kind = ItemCustomCall
	}
	i := a.open(kind)
	if of.Custom {
		i.Input = text
	} else {
		i.Arguments = text
	}
	i.CallID, i.Name, i.Namespace = openai.NewID(openai.CallIDPrefix), of.Name, of.Namespace
	return append(out, a.itemIs("response.output_item.added"))
}

// Arguments adds to the arguments of the current call.
func (a *Answer) Arguments(text string) []openai.NamedEvent {
	if a.item.Type == ItemCustomCall {
		return a.input(a.raw.push(text))
	}
	a.text = append(a.text, text...)
	const name = "response.function_call_arguments.delta"
	return []openai.NamedEvent{{Name: name, Data: argumentsEvent{Type: name, SequenceNumber: a.next(), ItemID: a.item.ID, OutputIndex: len(a.items), Delta: &text}}}
}

// input adds to the input of the current custom tool.
func (a *Answer) input(text string) []openai.NamedEvent {
	if text == "" {
		return nil
	}
	a.text = append(a.text, text...)
	return []openai.NamedEvent{a.inputIs(&text)}
}

// EndCall ends the current call; an incomplete call must not be executed.
func (a *Answer) EndCall(whole bool) []openai.NamedEvent {
	var out []openai.NamedEvent
	if whole && a.item.Type == ItemCustomCall {
		out = a.input(a.raw.rest())
	}
	status := StatusCompleted
	if !whole {
		status = StatusIncomplete
	}
	return append(out, a.close(status)...)
}

// close ends the current item.
func (a *Answer) close(status string) []openai.NamedEvent {
	if a.item == nil {
		return nil
	}
	a.item.Status = status
	text := string(a.text)
	var out []openai.NamedEvent
	switch a.item.Type {
	case ItemCall:
		const name = "response.function_call_arguments.done"
		a.item.Arguments = &text
		out = append(out, openai.NamedEvent{Name: name, Data: argumentsEvent{Type: name, SequenceNumber: a.next(), ItemID: a.item.ID, OutputIndex: len(a.items), Name: a.item.Name, Arguments: &text}})
	case ItemCustomCall:
		const name = "response.custom_tool_call_input.done"
		a.item.Input = &text
		out = append(out, openai.NamedEvent{Name: name, Data: inputEvent{Type: name, SequenceNumber: a.next(), ItemID: a.item.ID, OutputIndex: len(a.items), Input: &text}})
	default:
		part := a.part(text, a.likely)
		a.item.Content = []Part{part}
		out = append(out, a.said(nil, &text, a.likely), a.partIs("response.content_part.done", part))
	}
	out = append(out, a.itemIs("response.output_item.done"))
	a.items = append(a.items, *a.item)
	a.item, a.text, a.likely = nil, nil, nil
	return out
}

// Finish ends a response at a time; limit reports whether the token limit ended
// it.
func (a *Answer) Finish(limit bool, u *Usage, now int64) []openai.NamedEvent {
	r, name := &a.Response, "response.completed"
	r.Status, r.Usage = StatusCompleted, u
	if limit {
		name = "response.incomplete"
		r.Status, r.IncompleteDetails = StatusIncomplete, &Incomplete{"max_output_tokens"}
	} else {
		r.CompletedAt = &now
	}
	var out []openai.NamedEvent
	if len(a.items) == 0 && a.item == nil {
		out = a.begin(ItemMessage)
	}
	out = append(out, a.close(r.Status)...)
	r.Output = a.items
	return append(out, a.whole(name))
}

// Fail ends a response that failed or was cancelled. What was generated of it
// stays in its output.
func (a *Answer) Fail(status string, e *openai.Error) []openai.NamedEvent {
	out := a.close(StatusIncomplete)
	r := &a.Response
	r.Status, r.Error = status, nil
	r.Output = append(r.Output, a.items...)
	if status != StatusCancelled {
		r.Error = &Failure{failureCode(e), e.Message}
	}
	return append(out, a.whole("response.failed"))
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
