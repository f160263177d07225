package anthropic

import (
	"iter"
	"net/url"
	"slices"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// Model is one model of GET /v1/models. Members that are always null describe
// Anthropic's own models.
type Model struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	// Description is a line for a menu of models; empty if nothing is known.
	Description string `json:"description,omitempty"`
	CreatedAt   string `json:"created_at"`
	// MaxInputTokens and MaxTokens are the context length of the model, which
	// prompt and output share; null where it is unknown.
	MaxInputTokens *int64  `json:"max_input_tokens"`
	MaxTokens      *int64  `json:"max_tokens"`
	Lifecycle      string  `json:"lifecycle"`
	Capabilities   *string `json:"capabilities"`
	Line           *string `json:"line"`
	DeprecatedAt   *string `json:"deprecated_at"`
	RetiresAt      *string `json:"retires_at"`
}

// NewModel returns a model that was created at a time in seconds since 1970; 0 means
// that its context length is unknown.
func NewModel(id string, created, context int64) Model {
	m := Model{Type: "model", ID: id, DisplayName: id, CreatedAt: time.Unix(created, 0).UTC().Format(time.RFC3339), Lifecycle: "active"}
	if context > 0 {
		m.MaxInputTokens, m.MaxTokens = &context, &context
	}
	return m
}

// ModelList is a page of GET /v1/models.
type ModelList struct {
	Data    []Model `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// maxModels is the maximum number of models of a page, and its default.
const maxModels = 1000

// Page is the part of a list of models that a query asks for.
type Page struct {
	// Limit is the maximum number of models.
	Limit         int
	after, before string
}

// ParsePage reads limit, after_id and before_id of a query.
func ParsePage(query url.Values) (Page, error) {
	p := Page{Limit: maxModels, after: query.Get("after_id"), before: query.Get("before_id")}
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxModels {
			return Page{}, openai.Invalid("limit", "'limit' must be between 1 and %d, not %s.", maxModels, openai.Shorten(text))
		}
		p.Limit = n
	}
	return p, nil
}

// PageOf returns the models of a page, by their ids, and whether the list has more after
// them or, with before_id, ahead of them. It keeps no more than a page of the list in memory.
func PageOf[M any](p Page, all iter.Seq[M], id func(M) string) (page []M, more bool, err error) {
	begun, n := p.after == "", 0
	for m := range all {
		switch {
		case !begun:
			begun = id(m) == p.after
		case p.before != "" && id(m) == p.before:
			return ordered(page, n), n > p.Limit, nil
		case n < p.Limit:
			page, n = append(page, m), n+1
		case p.before == "":
			return page, true, nil
		default: // those just before before_id are wanted: the oldest gives way
			page[n%p.Limit], n = m, n+1
		}
	}
	if !begun {
		return nil, false, openai.Invalid("after_id", "'after_id' is not a model: %s.", openai.Shorten(p.after))
	}
	if p.before != "" {
		return nil, false, openai.Invalid("before_id", "'before_id' is not a model: %s.", openai.Shorten(p.before))
	}
	return page, false, nil
}

// ordered returns the elements of a ring, into which n were put, the oldest first.
func ordered[M any](ring []M, n int) []M {
	if n <= len(ring) {
		return ring
	}
	return slices.Concat(ring[n%len(ring):], ring[:n%len(ring)])
}

// NewModelList returns a page without its models, of which it has the ids of the first and
// the last one; both are empty if it has none.
func NewModelList(first, last string, more bool) ModelList {
	out := ModelList{Data: []Model{}, HasMore: more}
	if first != "" {
		out.FirstID, out.LastID = &first, &last
	}
	return out
}
