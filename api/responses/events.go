package responses

import "metalfleet.dev/metalfleet/api/openai"

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
	// Logprobs of output_text is always present.
	Logprobs []openai.ChatLogprob `json:"logprobs,omitzero"`
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

type inputEvent struct {
	Type           string  `json:"type"`
	SequenceNumber int     `json:"sequence_number"`
	ItemID         string  `json:"item_id"`
	OutputIndex    int     `json:"output_index"`
	Delta          *string `json:"delta,omitempty"`
	Input          *string `json:"input,omitempty"`
}

// next returns the sequence number of the next event.
func (a *Answer) next() int {
	a.sequence++
	return a.sequence - 1
}

// Follow makes the next event the one after that many, which were sent elsewhere.
func (a *Answer) Follow(events int) { a.sequence = events }

// Opening begins a stream.
func (a *Answer) Opening() []openai.NamedEvent {
	status := a.Response.Status
	if a.Response.Background {
		a.Response.Status = StatusQueued
	}
	created := a.whole("response.created")
	a.Response.Status = status
	return []openai.NamedEvent{created, a.whole("response.in_progress")}
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
	case a.item.Type == ItemCustomCall:
		return []openai.NamedEvent{a.inputIs(&empty)}
	case a.item.Type == ItemMessage, a.item.Type == ItemReasoning:
		return []openai.NamedEvent{a.said(&empty, nil, nil)}
	}
	return nil
}

// whole returns an event with the response.
func (a *Answer) whole(name string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: responseEvent{Type: name, SequenceNumber: a.next(), Response: a.Response}}
}

// itemIs returns an event with the current item.
func (a *Answer) itemIs(name string) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: itemEvent{name, a.next(), len(a.items), *a.item}}
}

// partIs returns an event with the part of the current item.
func (a *Answer) partIs(name string, p Part) openai.NamedEvent {
	return openai.NamedEvent{Name: name, Data: partEvent{name, a.next(), a.item.ID, len(a.items), 0, p}}
}

// said returns the event for text of the current item: a delta, or all of it.
func (a *Answer) said(delta, text *string, likely []openai.ChatLogprob) openai.NamedEvent {
	name := "response.output_text"
	switch {
	case a.item.Type == ItemReasoning:
		name, likely = "response.reasoning_text", nil
	case likely == nil:
		likely = []openai.ChatLogprob{}
	}
	if name += ".delta"; delta == nil {
		name = name[:len(name)-len("delta")] + "done"
	}
	return openai.NamedEvent{Name: name, Data: textEvent{name, a.next(), a.item.ID, len(a.items), 0, delta, text, likely}}
}

// inputIs returns the event for more input of the current custom tool.
func (a *Answer) inputIs(delta *string) openai.NamedEvent {
	const name = "response.custom_tool_call_input.delta"
	return openai.NamedEvent{Name: name, Data: inputEvent{Type: name, SequenceNumber: a.next(), ItemID: a.item.ID, OutputIndex: len(a.items), Delta: delta}}
}
