package serve

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/serve/internal/responsecache"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

const (
	codeCancelled = "response_cancelled"
	// itemsDefault and itemsMost are the default and maximum number of input
	// items on a page.
	itemsDefault, itemsMost = 20, 100
)

// includeQuery are the names of a parameter without effect: the fields that it
// can name are either always included or not supported.
var includeQuery = []string{"include", "include[]"}

// responseForm builds the bodies of a response, and stores it.
type responseForm struct {
	a     *responses.Answer
	cache *responsecache.Cache // nil if the response is not stored
	// entry is what is stored. After the admission it has only the tenant.
	entry responsecache.Entry
	limit bool
	ended bool
	// thought: the last event had reasoning and no text.
	thought bool
}

// turns counts the items that an event begins, each after one of the other kind.
func (f *responseForm) turns(d *wire.Delta) (n int) {
	if d.GetReasoning() != "" && !f.thought {
		n, f.thought = n+1, true
	}
	if d.GetText() != "" && f.thought {
		n, f.thought = n+1, false
	}
	return n
}

func (f *responseForm) admitted(_ int, cancel func()) {
	f.entry.Response, f.entry.Cancel = f.a.Response, cancel
	if f.cache != nil {
		f.cache.Put(f.entry)
	}
	// The answer may take hours: only the cache, which is bounded, keeps its conversation.
	f.entry = responsecache.Entry{Tenant: f.entry.Tenant}
}

// keep stores the final state of the response.
func (f *responseForm) keep() {
	f.ended = true
	if f.cache != nil {
		f.cache.End(f.a.Response)
	}
}

// over removes a response whose client disconnected before its end, unless it was
// canceled by its id. A background response has failed.
func (f *responseForm) over() {
	if f.ended || f.cache == nil {
		return
	}
	if f.a.Response.Background {
		f.failed(&openai.Error{Status: http.StatusServiceUnavailable, Message: "The gateway that ran the response ended before the response was complete. Send the request again."}, "")
		return
	}
	id := f.a.Response.ID
	if e, ok := f.cache.Get(id, f.entry.Tenant); ok && e.Response.Status == responses.StatusInProgress {
		f.cache.Delete(id, f.entry.Tenant)
	}
}

func (f *responseForm) identify(id, proof string) {
	f.a.Response.ID = id
	if responses.IsProof(proof) {
		f.entry.Proof = proof
	}
}

// keepAlive returns nil, not an empty list, if the response has no such event.
func (f *responseForm) keepAlive(p *openai.PromptProgress) any {
	if events := f.a.KeepAlive(p); events != nil {
		return events
	}
	return nil
}

func (f *responseForm) stopped(*wire.Finished) {}
func (f *responseForm) opening() any           { return f.a.Opening() }
func (f *responseForm) text(p piece) any       { return f.a.Text(p.text, p.ranked...) }

func (f *responseForm) thinks(text string) any { return f.a.Thinking(text) }

func (f *responseForm) calls(c *wire.CallDelta) any {
	var out []openai.NamedEvent
	if c.GetName() != "" {
		out = f.a.Call(c.GetName())
	}
	if c.GetArguments() != "" {
		out = append(out, f.a.Arguments(c.GetArguments())...)
	}
	if c.GetEnded() {
		out = append(out, f.a.EndCall(c.GetWritten() == "")...)
	}
	return out
}

func (f *responseForm) finish(r string) any {
	f.limit = r == openai.FinishLength
	return []openai.NamedEvent(nil)
}

func (f *responseForm) usage(u openai.Usage) any { return f.end(f.limit, u) }

// end stores the response before its client receives the end, and can continue
// it.
func (f *responseForm) end(limit bool, u openai.Usage) []openai.NamedEvent {
	events := f.a.Finish(limit, responses.NewUsage(u), time.Now().Unix())
	f.keep()
	return events
}

func (f *responseForm) whole(p piece, reason string, u openai.Usage) any {
	if p.thoughts != "" {
		f.a.Thinking(p.thoughts)
	}
	for _, one := range p.parts {
		if one.call == nil {
			f.a.Text(one.text, one.ranked...)
			continue
		}
		f.a.Call(one.call.name)
		f.a.Arguments(one.call.arguments)
		f.a.EndCall(one.call.written == "")
	}
	f.end(reason == openai.FinishLength, u)
	return f.a.Response
}

func (f *responseForm) failed(e *openai.Error, _ string) any {
	status := responses.StatusFailed
	if e.Code == codeCancelled {
		status = responses.StatusCancelled
	}
	events := f.a.Fail(status, e)
	f.keep()
	return events
}

// kept serves requests about a stored response: retrieve it, list its input,
// delete it, cancel it.
func (h *handler) kept(w http.ResponseWriter, r *http.Request) error {
	id, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, dialect.PathResponses+"/"), "/")
	switch {
	case id == responses.CompactID:
		return responses.NoCompaction()
	case what == "" && r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodDelete:
		w.Header().Set("Allow", "GET, HEAD, DELETE")
		return openai.MethodNotAllowed(r.Method, r.URL.Path, "GET or DELETE")
	case what == "cancel":
		if err := front.AllowMethods(w, r, http.MethodPost); err != nil {
			return err
		}
	case what == "input_items":
		if err := front.AllowMethods(w, r, http.MethodGet); err != nil {
			return err
		}
	case what != "":
		return openai.RouteNotFound(r.Method, r.URL.Path)
	}
	query, err := responses.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	if r.Method == http.MethodGet {
		for _, name := range includeQuery {
			query.Del(name)
		}
	}
	if what != "input_items" {
		if err := known(query); err != nil {
			return err
		}
	}
	return h.ofKept(w, r, id, what, query)
}

// ofKept serves one such request.
func (h *handler) ofKept(w http.ResponseWriter, r *http.Request, id, what string, query url.Values) error {
	tenant := r.Header.Get(agentapi.HeaderTenant)
	if r.Method == http.MethodDelete {
		if !h.cache.Delete(id, tenant) {
			return responses.NotFound(id)
		}
		return front.WriteJSON(w, responses.Deleted{ID: id, Object: "response", Deleted: true})
	}
	if r.Method == http.MethodHead {
		return h.headOf(w, id, what, tenant, query)
	}
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	size := min(echoCopies*h.cache.Size(id, tenant), h.answers.Most()) // more is always refused
	kept, err := h.keepSoon(ctx, r, size, end)
	if err != nil {
		return err
	}
	defer kept.Release()
	defer front.BreakAfter(ctx, w)()
	p := h.largePlace(ctx, r.Header)
	if what == "cancel" {
		return h.cancel(w, p, id)
	}
	if err := h.memory(); err != nil {
		return err
	}
	e, bytes, ok := h.cache.Sized(id, tenant)
	if !ok {
		return responses.NotFound(id)
	}
	if now := min(echoCopies*bytes, h.answers.Most()); now > size { // it ended while this waited
		if err := kept.Set(now); err != nil {
			return tooMany(err)
		}
	}
	if what == "input_items" {
		list, err := items(e.Input, query)
		if err != nil {
			return err
		}
		return showItems(w, p, list)
	}
	return show(w, p, e.Response)
}

// headOf serves HEAD: nothing is encoded, and there is nothing to wait for. A gateway that looks for
// a response asks every Mac like this.
func (h *handler) headOf(w http.ResponseWriter, id, what, tenant string, query url.Values) error {
	e, ok := h.cache.Get(id, tenant)
	if !ok {
		return responses.NotFound(id)
	}
	if what == "input_items" {
		if _, err := items(e.Input, query); err != nil {
			return err
		}
	} else if e.Proof != "" {
		w.Header().Set(agentapi.HeaderResponseProof, e.Proof)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	return nil
}

// show writes a stored response, or part of one. A short request asks for a large one, so it is
// encoded in a place as large bodies are decoded.
func show(w http.ResponseWriter, p *place, v any) error {
	if err := p.take(); err != nil {
		return err
	}
	defer p.give()
	body, err := openai.Marshal(v)
	if err != nil {
		return err
	}
	p.give() // the client reads as slowly as it likes
	return front.WriteBody(w, body)
}

// showItems is show for a page of items, one of which is encoded at a time: the page may have a
// large one many times, which is stored once.
func showItems(w http.ResponseWriter, p *place, list responses.ItemList) error {
	all := list.Data
	list.Data = []responses.Item{}
	return front.WriteList(w, list, func(yield func(func() ([]byte, error)) bool) {
		for _, i := range all {
			encode := func() ([]byte, error) {
				if err := p.take(); err != nil {
					return nil, err
				}
				defer p.give()
				return openai.Marshal(i)
			}
			if !yield(encode) {
				return
			}
		}
	})
}

// known refuses query parameters that are not supported.
func known(query url.Values, names ...string) error {
	for name := range query {
		if !slices.Contains(names, name) {
			return openai.Unsupported(name, "Omit it.")
		}
	}
	return nil
}

// cancel ends a response in progress.
func (h *handler) cancel(w http.ResponseWriter, p *place, id string) error {
	e, found, cancelled := h.cache.Cancel(id, p.tenant)
	switch {
	case !found:
		return responses.NotFound(id)
	case !cancelled && !e.Response.Background:
		return openai.Invalid("", "Cannot cancel a synchronous response. It is %s; only a response in progress can be cancelled.", e.Response.Status)
	case !cancelled:
		return openai.Invalid("", "The response is %s; only a response in progress can be cancelled.", e.Response.Status)
	}
	e.Cancel()
	return show(w, p, e.Response)
}

// items returns a page of a response's input, the newest first unless the query
// asks otherwise.
func items(all []responses.Item, query url.Values) (list responses.ItemList, err error) {
	if err := known(query, responses.ItemsQuery...); err != nil {
		return list, err
	}
	limit := itemsDefault
	if query.Has("limit") {
		text := query.Get("limit")
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > itemsMost {
			return list, openai.Invalid("limit", "'limit' must be between 1 and %d, not %s.", itemsMost, openai.Shorten(text))
		}
		limit = n
	}
	newest := !query.Has("order") || query.Get("order") == "desc"
	if order := query.Get("order"); !newest && order != "asc" {
		return list, openai.Invalid("order", "'order' must be asc or desc, not %s.", openai.Shorten(order))
	}
	if query.Has("after") {
		after := query.Get("after")
		i := slices.IndexFunc(all, func(i responses.Item) bool { return i.ID == after })
		if i < 0 {
			return list, openai.Invalid("after", "'after' is not an item of this response: %s.", openai.Shorten(after))
		}
		if newest {
			all = all[:i]
		} else {
			all = all[i+1:]
		}
	}
	n := min(limit, len(all))
	list = responses.ItemList{Object: "list", Data: make([]responses.Item, n), HasMore: len(all) > limit}
	if newest { // others read the same items
		copy(list.Data, all[len(all)-n:])
		slices.Reverse(list.Data)
	} else {
		copy(list.Data, all)
	}
	if n > 0 {
		list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
	}
	return list, nil
}
