package responses

import "metalfleet.dev/metalfleet/api/openai"

// Statuses of a response.
const (
	// StatusQueued is the status of a response in the background when it is created.
	StatusQueued     = "queued"
	StatusInProgress = "in_progress"
	StatusCompleted  = "completed"
	StatusIncomplete = "incomplete"
	StatusFailed     = "failed"
	StatusCancelled  = "cancelled"
)

// Response is the response object of this API.
type Response struct {
	ID         string `json:"id"`
	Object     string `json:"object"`
	CreatedAt  int64  `json:"created_at"`
	Status     string `json:"status"`
	Background bool   `json:"background"`
	// CompletedAt is null unless the response is completed.
	CompletedAt        *int64            `json:"completed_at"`
	Error              *Failure          `json:"error"`
	FrequencyPenalty   float64           `json:"frequency_penalty"`
	IncompleteDetails  *Incomplete       `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	MaxOutputTokens    *int              `json:"max_output_tokens"`
	MaxToolCalls       *int              `json:"max_tool_calls"`
	Metadata           map[string]string `json:"metadata"`
	Model              string            `json:"model"`
	Output             []Item            `json:"output"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	PresencePenalty    float64           `json:"presence_penalty"`
	PreviousResponseID *string           `json:"previous_response_id"`
	PromptCacheKey     *string           `json:"prompt_cache_key"`
	Reasoning          reasoning         `json:"reasoning"`
	SafetyIdentifier   *string           `json:"safety_identifier"`
	ServiceTier        string            `json:"service_tier"`
	Store              bool              `json:"store"`
	// Temperature and TopP are those that the sampler uses, also where the request
	// has none.
	Temperature float64    `json:"temperature"`
	Text        textFormat `json:"text"`
	// ToolChoice is a string, or an object that names tools.
	ToolChoice  any            `json:"tool_choice"`
	Tools       []DeclaredTool `json:"tools"`
	TopLogprobs int            `json:"top_logprobs"`
	TopP        float64        `json:"top_p"`
	Truncation  string         `json:"truncation"`
	Usage       *Usage         `json:"usage"`
	User        *string        `json:"user"`
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
	// Format is an object with a type, and with what belongs to that.
	Format any `json:"format"`
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
	out.OutputTokensDetails.ReasoningTokens = u.Reasoning()
	return out
}

// InputTokens is the response of POST /v1/responses/input_tokens.
type InputTokens struct {
	Object      string `json:"object"`
	InputTokens int    `json:"input_tokens"`
}

// NewInputTokens returns an InputTokens with its constant field set.
func NewInputTokens(n int) InputTokens {
	return InputTokens{Object: "response.input_tokens", InputTokens: n}
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

// newResponse returns a response in progress.
func newResponse(id string, created int64, r *Request) Response {
	out := Response{ID: id, Object: "response", CreatedAt: created, Status: StatusInProgress, Background: r.Background,
		FrequencyPenalty: orDefault(r.Sampling.FrequencyPenalty, 0), Instructions: r.Instructions, MaxOutputTokens: r.MaxOutputTokens, MaxToolCalls: r.MaxToolCalls,
		Metadata: r.Metadata, Model: r.Model, Output: []Item{}, ParallelToolCalls: !r.Use.Single, PresencePenalty: orDefault(r.Sampling.PresencePenalty, 0),
		PreviousResponseID: described(r.Previous), PromptCacheKey: label(described(r.CacheKey)), SafetyIdentifier: label(r.SafetyID), ServiceTier: "default", Store: r.Store,
		Temperature: orDefault(r.Sampling.Temperature, 1), Text: textFormat{r.Format}, ToolChoice: r.Choice, Tools: r.Tools, TopLogprobs: r.TopLogprobs,
		TopP: orDefault(r.Sampling.TopP, 1), Truncation: truncateDisabled, User: label(r.User)}
	out.Reasoning.Effort = described(r.Effort)
	if r.Truncate {
		out.Truncation = truncateAuto
	}
	return out
}

// maxLabel is the maximum size of a label in a response, in bytes. Each response and some of its
// events repeat the labels, which no context length bounds. OpenAI accepts at most 512 characters.
const maxLabel = 4 << 10

// label returns nil for a label that is too long: the request is accepted without it.
func label(text *string) *string {
	if text != nil && len(*text) > maxLabel {
		return nil
	}
	return text
}

// orDefault returns the value of a sampling parameter; the sampler's defaults are
// neutral.
func orDefault(v *float64, neutral float64) float64 {
	if v == nil {
		return neutral
	}
	return *v
}
