package anthropic

import (
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

// NewModelList returns the page that a query asks for by limit, after_id and
// before_id.
func NewModelList(all []Model, query url.Values) (ModelList, error) {
	limit := maxModels
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxModels {
			return ModelList{}, openai.Invalid("limit", "'limit' must be between 1 and %d, not %s.", maxModels, openai.Shorten(text))
		}
		limit = n
	}
	page, more := slices.Clone(all), false
	if id := query.Get("after_id"); id != "" {
		i := slices.IndexFunc(page, func(m Model) bool { return m.ID == id })
		if i < 0 {
			return ModelList{}, openai.Invalid("after_id", "'after_id' is not a model: %s.", openai.Shorten(id))
		}
		page = page[i+1:]
	}
	if id := query.Get("before_id"); id != "" {
		i := slices.IndexFunc(page, func(m Model) bool { return m.ID == id })
		if i < 0 {
			return ModelList{}, openai.Invalid("before_id", "'before_id' is not a model: %s.", openai.Shorten(id))
		}
		page = page[:i]
		if len(page) > limit { // those just before it
			page, more = page[len(page)-limit:], true
		}
	}
	if len(page) > limit {
		page, more = page[:limit], true
	}
	out := ModelList{Data: append([]Model{}, page...), HasMore: more}
	if n := len(page); n > 0 {
		out.FirstID, out.LastID = &page[0].ID, &page[n-1].ID
	}
	return out, nil
}
