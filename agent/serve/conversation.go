package serve

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/agent/serve/internal/responsecache"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

// decodeResponse decodes a request for a response. The previous response and the
// items that it refers to must belong to its tenant and be stored here.
func (h *handler) decodeResponse(d *openai.Decoder, place *place, body []byte, head http.Header) (*request, error) {
	r, err := responses.Decode(d, body)
	if err != nil {
		return nil, err
	}
	if r.Background && head.Get(agentapi.HeaderBackground) != "true" {
		return nil, openai.Invalid("background", "This port runs no responses in the background. Send the request to a gateway, or omit 'background'.")
	}
	r.Identify(h.Mac)
	req, talk, err := h.responseRequest(place, r)
	if err != nil {
		return nil, err
	}
	tenant := place.tenant
	req.stream = req.stream || r.Background
	req.answer = func(model string, created int64) form {
		f := &responseForm{a: responses.NewAnswer(responses.NewID(h.Mac), created, r), entry: responsecache.Entry{Tenant: tenant, Input: r.Input, Talk: talk}}
		f.a.Response.Model, f.a.Mac = model, h.Mac
		if r.Store {
			f.cache = h.cache
		}
		return f
	}
	return req, nil
}

// decodeInputTokens decodes a request for the number of prompt tokens of a
// response.
func (h *handler) decodeInputTokens(d *openai.Decoder, place *place, body []byte) (*request, error) {
	r, err := responses.DecodeCount(d, body)
	if err != nil {
		return nil, err
	}
	req, _, err := h.responseRequest(place, r)
	if err != nil {
		return nil, err
	}
	req.stream, req.wire.MaxTokens = false, 1
	req.count = func(n int) any { return responses.NewInputTokens(n) }
	return req, nil
}

// responseRequest returns the request for an engine, and the conversation so far. Stored items may
// be large, so it takes a place for them.
func (h *handler) responseRequest(place *place, r *responses.Request) (req *request, talk []responses.Item, err error) {
	if continues(r) {
		if err := place.takeLarge(); err != nil {
			return nil, nil, err
		}
	}
	talk, held, stored, err := h.conversation(r, place)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			stored.Release()
		}
	}()
	chat := &wire.Chat{SplitReasoning: true, ReasoningEffort: r.Effort}
	if err := offer(chat, &r.Use); err != nil {
		return nil, nil, err
	}
	if r.Instructions != nil && *r.Instructions != "" {
		chat.Messages = append(chat.Messages, &wire.ChatMessage{Role: openai.RoleSystem, Content: *r.Instructions})
	}
	turns, err := talkOf(place.ctx, talk, r.FunctionNames())
	if err != nil {
		return nil, nil, err
	}
	chat.Messages = joinSystem(append(chat.Messages, turns...))
	g := generation(&r.Sampling)
	g.CacheSalt = r.CacheSalt
	if r.MaxOutputTokens != nil {
		g.MaxTokens = int64(*r.MaxOutputTokens)
	}
	if r.Logprobs {
		top := int32(r.TopLogprobs)
		g.TopLogprobs = &top
	}
	g.Input = &wire.GenerateRequest_Chat{Chat: chat}
	req = &request{model: r.Model, stored: stored, held: held, stream: r.Stream, includeUsage: true, wire: g, priority: r.Sampling.Priority}
	for i := range r.Input { // they stay, as turns do
		req.held -= r.Input[i].Bytes()
	}
	if r.Truncate {
		req.shorten = shortening(chat)
	}
	return req, talk, nil
}

// continues reports whether a request needs stored items.
func continues(r *responses.Request) bool {
	return r.Previous != "" || slices.ContainsFunc(r.Input, func(i responses.Item) bool { return i.Type == responses.ItemReference })
}

// turnBytes is what an item takes as a turn of a prompt, without its texts.
const turnBytes = 1 << 10

// conversation returns the items before the answer. References in the input are replaced by
// their items, which may take as much as a request body: each is short, and may stand for a
// long text again and again. The memory that all stored items take until an engine has
// admitted the request, held, counts before it is used, until it is released.
func (h *handler) conversation(r *responses.Request, place *place) (talk []responses.Item, held int64, kept intake.Kept, err error) {
	var before []responses.Item
	if r.Previous != "" {
		e, ok := h.cache.Get(r.Previous, place.tenant)
		if !ok {
			return nil, 0, kept, responses.PreviousNotFound(r.Previous)
		}
		if e.Response.Status != responses.StatusCompleted && e.Response.Status != responses.StatusIncomplete {
			return nil, 0, kept, openai.Invalid("previous_response_id", "The response in 'previous_response_id' is %s, so it cannot be continued.", e.Response.Status)
		}
		before = e.Talk
	}
	room := h.MaxBodyBytes
	for i := range before {
		room -= before[i].Bytes()
	}
	if room < 0 || len(before)+len(r.Input) > openai.MaxParts {
		return nil, 0, kept, openai.Invalid("previous_response_id", "The conversation has more than %d bytes or %d items. Begin a new one, with a summary of this one.", h.MaxBodyBytes, openai.MaxParts)
	}
	for i := range r.Input {
		if r.Input[i].Type != responses.ItemReference {
			continue
		}
		item, ok := h.cache.Item(r.Input[i].ID, place.tenant)
		if !ok {
			return nil, 0, kept, responses.ItemNotFound(fmt.Sprintf("input[%d].id", i), r.Input[i].ID)
		}
		if room -= item.Bytes(); room < 0 {
			return nil, 0, kept, openai.Invalid(fmt.Sprintf("input[%d]", i), "The items that 'input' refers to have more than %d bytes in total. Refer to fewer of them.", h.MaxBodyBytes)
		}
		r.Input[i] = item
	}
	stored := h.MaxBodyBytes - room
	if stored > 0 || len(before) > 0 {
		stored = textCopies*stored + turnBytes*int64(len(before)+len(r.Input))
	}
	if stored > h.bodies.Max/2 {
		return nil, 0, kept, openai.Invalid("previous_response_id", "The conversation takes more memory than there is for one. Begin a new one, with a summary of this one.")
	}
	if kept, err = h.bodies.Hold(place.owner, stored); err != nil {
		return nil, 0, kept, err
	}
	return slices.Concat(before, r.Input), stored, kept, nil
}

// joinSystem joins the system messages at the beginning: many templates accept
// only one.
func joinSystem(all []*wire.ChatMessage) []*wire.ChatMessage {
	var texts []string
	for len(texts) < len(all) && all[len(texts)].GetRole() == openai.RoleSystem {
		texts = append(texts, all[len(texts)].GetContent())
	}
	if len(texts) < 2 {
		return all
	}
	all[0].Content = strings.Join(texts, "\n\n")
	return append(all[:1], all[len(texts):]...)
}

// mostShortened is how often a conversation is shortened: each time the engine reads it again.
const mostShortened = 8

// shortening returns a function that drops the beginning of a conversation: the
// oldest exchanges, each from one user message to the next, and several times as many
// each time: twice, or more of a long conversation. Instructions and the last exchange stay.
func shortening(chat *wire.Chat) func(limit int64) bool {
	drop, factor := 1, 0
	return func(limit int64) bool {
		head := 0
		for head < len(chat.Messages) && chat.Messages[head].GetRole() == openai.RoleSystem {
			head++
		}
		var begins []int // of exchanges after the first
		for i := head + 1; i < len(chat.Messages); i++ {
			if chat.Messages[i].GetRole() == openai.RoleUser {
				begins = append(begins, i)
			}
		}
		if len(begins) == 0 {
			return false
		}
		excess, bytes := 0, messageBytes(chat.Messages) // exchanges that do not fit into the limit
		for from := head; limit > 0 && bytes > limit && excess < len(begins); excess++ {
			bytes -= messageBytes(chat.Messages[from:begins[excess]])
			from = begins[excess]
		}
		if factor == 0 {
			factor = max(2, int(math.Ceil(math.Pow(float64(len(begins)-excess), 1./(mostShortened-1)))))
		}
		chat.Messages = slices.Delete(chat.Messages, head, begins[min(max(drop, excess), len(begins))-1])
		drop *= factor
		return true
	}
}
