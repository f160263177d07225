// Package rerank defines the wire types of reranking for Cohere's and Jina's
// clients: POST /v1/rerank and POST /v2/rerank. It has two more forms of the same
// task: the pairs of vLLM's POST /v1/score, and the texts that clients of
// text-embeddings-inference send to /rerank.
//
// It owns the decoding of requests, the order of the results, and the
// format of errors, which serves both kinds of clients. Like package openai, it
// ignores nothing silently. It computes no scores.
//
// Start reading at Decode and Request.Answer.
package rerank

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/api/openai"
)

// maxDocuments is the maximum number of documents in a request.
const maxDocuments = 2048

// Version is the version of the API, from the request path.
type Version int

// The API versions. Jina's API is V1 too.
const (
	V1 Version = 1
	V2 Version = 2
)

// Request is the body of both routes. Truncate and Instruction are extensions
// to both APIs.
type Request struct {
	Model     string
	Query     string
	Documents []string
	// TopN is the maximum number of results; nil means all.
	TopN *int
	// Echo includes the documents in the results.
	Echo bool
	// Truncate truncates documents that exceed the model's context. Default:
	// true, as in both APIs.
	Truncate bool
	// MaxTokens of the query and a document together, to which the document is
	// truncated; 0 means what the model supports.
	MaxTokens int
	// Instruction describes the task of the query.
	Instruction string

	version Version
}

// Unused lists the fields of both routes without effect.
func Unused() []openai.Place { return []openai.Place{{Unused: unused}} }

// unused are the fields of both routes without effect.
var unused = []openai.Unused{
	{Name: "max_tokens_per_doc", Why: "a document is cut to the model's context"},
	{Name: "priority", Why: "requests are answered in their order of arrival", Neutral: []string{"0"}},
	{Name: "user", Why: openai.WhyLabel, Foreign: true},

	{Name: "max_chunks_per_doc", Why: "a document is scored as a whole", Neutral: []string{"1"}, Refused: true},
	{Name: "rank_fields", Why: "a document is its text", Neutral: []string{`["text"]`}, Refused: true},
}

// Decode reads a request body. It returns an *openai.Error.
func Decode(d *openai.Decoder, body []byte, v Version) (*Request, error) {
	if err := openai.CheckJSON(body); err != nil {
		return nil, err
	}
	r := &Request{Echo: v == V1, Truncate: true, version: v}
	err := d.Object(body, "", map[string]openai.Field{
		"model":            openai.String(&r.Model),
		"query":            openai.String(&r.Query),
		"documents":        r.documents(d),
		"top_n":            openai.Optional(openai.Int(&r.TopN, 1, math.MaxInt32)),
		"return_documents": openai.Optional(openai.Bool(&r.Echo)),
		"truncate":         openai.Optional(openai.TruncateInputs(&r.Truncate)),
		"instruction":      openai.Optional(openai.Instruction(&r.Instruction)),

		"truncate_prompt_tokens": openai.Optional(openai.TruncateTo(&r.Truncate, &r.MaxTokens)),
	}, unused)
	switch {
	case err != nil:
		return nil, err
	case r.Model == "":
		return nil, openai.Required("model")
	case r.Query == "":
		return nil, openai.Required("query")
	case len(r.Documents) == 0:
		return nil, openai.Required("documents")
	}
	return r, nil
}

// documents accepts strings, and objects with a text.
func (r *Request) documents(d *openai.Decoder) openai.Field {
	return func(param string, raw json.RawMessage) error {
		return openai.Array(param, raw, func(at string, raw json.RawMessage) error {
			if len(r.Documents) == maxDocuments {
				return openai.Invalid(param, "'%s' must have at most %d entries. Send several requests.", param, maxDocuments)
			}
			var text string
			decode := openai.String(&text)
			if openai.Kind(raw) == "object" {
				decode = func(at string, raw json.RawMessage) error {
					return d.Object(raw, at, map[string]openai.Field{"text": openai.String(&text)})
				}
			}
			if err := decode(at, raw); err != nil {
				return err
			}
			if text == "" {
				return openai.Invalid(at, "'%s' must be a non-empty text, or an object with one.", at)
			}
			r.Documents = append(r.Documents, text)
			return nil
		})
	}
}

// Answer is the response of both routes: Cohere's clients read id and meta,
// Jina's model and usage.
type Answer struct {
	ID      string                `json:"id"`
	Results []Result              `json:"results"` // the first list, as front.WriteList needs
	Model   string                `json:"model"`
	Usage   openai.EmbeddingUsage `json:"usage"`
	Meta    Meta                  `json:"meta"`
}

// Result is the score of one document; Index is its position in the request.
type Result struct {
	Index          int       `json:"index"`
	RelevanceScore float32   `json:"relevance_score"`
	Document       *Document `json:"document,omitempty"`
}

// Document is a document of the request.
type Document struct {
	Text string `json:"text"`
}

// Meta is Cohere's metadata of a response.
type Meta struct {
	APIVersion struct {
		Version string `json:"version"`
	} `json:"api_version"`
	BilledUnits struct {
		SearchUnits int `json:"search_units"`
	} `json:"billed_units"`
	Tokens struct {
		InputTokens int `json:"input_tokens"`
	} `json:"tokens"`
}

// Answer builds the response from the scores of the documents, in the order of
// the request. It sorts by descending score, and documents with equal scores by
// position.
func (r *Request) Answer(scores []float32, promptTokens int) Answer {
	a := Answer{ID: newID(), Model: r.Model, Results: []Result{}, Usage: openai.EmbeddingUsage{PromptTokens: promptTokens, TotalTokens: promptTokens}}
	a.Meta.APIVersion.Version = string(rune('0' + r.version))
	a.Meta.BilledUnits.SearchUnits = 1
	a.Meta.Tokens.InputTokens = promptTokens
	for i, s := range scores {
		a.Results = append(a.Results, Result{Index: i, RelevanceScore: s})
	}
	slices.SortStableFunc(a.Results, func(x, y Result) int { return cmp.Compare(y.RelevanceScore, x.RelevanceScore) })
	if r.TopN != nil {
		a.Results = a.Results[:min(*r.TopN, len(a.Results))]
	}
	for i := range a.Results {
		if r.Echo {
			a.Results[i].Document = &Document{r.Documents[a.Results[i].Index]}
		}
	}
	return a
}

// newID generates the id of a response.
func newID() string {
	var b [4]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return "rerank-" + hex.EncodeToString(b[:])
}

// ErrorBody returns an error body for all clients of these routes: Cohere's
// read message, Jina's detail, all others error.
func ErrorBody(e *openai.Error) ([]byte, error) {
	inner, err := e.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var body struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  string          `json:"detail"`
	}
	if err := json.Unmarshal(inner, &body); err != nil {
		return nil, err
	}
	body.Message, body.Detail = e.Message, e.Message
	return openai.Marshal(body)
}
