package rerank

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"

	"metalfleet.dev/metalfleet/api/openai"
)

// ScoreRequest is the body of POST /v1/score, vLLM's route: pairs of a query and a
// document. Truncate and Instruction are extensions.
type ScoreRequest struct {
	Model string
	// Queries is one for all documents, or one for each.
	Queries, Documents []string
	Truncate           bool
	// MaxTokens of a query and a document together, as in Request.
	MaxTokens   int
	Instruction string
}

// DecodeScore reads a request body. It returns an *openai.Error.
func DecodeScore(d *openai.Decoder, body []byte) (*ScoreRequest, error) {
	if err := openai.CheckJSON(body); err != nil {
		return nil, err
	}
	r := &ScoreRequest{Truncate: true}
	err := d.Object(body, "", map[string]openai.Field{
		"model":       openai.String(&r.Model),
		"text_1":      texts(&r.Queries),
		"text_2":      texts(&r.Documents),
		"queries":     texts(&r.Queries),
		"documents":   texts(&r.Documents),
		"truncate":    openai.Optional(openai.Bool(&r.Truncate)),
		"instruction": openai.Optional(openai.Instruction(&r.Instruction)),

		"truncate_prompt_tokens": openai.Optional(openai.TruncateTo(&r.Truncate, &r.MaxTokens)),
	}, unused)
	switch {
	case err != nil:
		return nil, err
	case r.Model == "":
		return nil, openai.Required("model")
	case len(r.Queries) == 0:
		return nil, openai.Required("text_1")
	case len(r.Documents) == 0:
		return nil, openai.Required("text_2")
	case len(r.Queries) != 1 && len(r.Queries) != len(r.Documents):
		return nil, openai.Invalid("text_1", "'text_1' has %d texts and 'text_2' has %d. Send one text in 'text_1', or as many as in 'text_2'.", len(r.Queries), len(r.Documents))
	}
	return r, nil
}

// texts accepts a text, or a list of texts. Two fields may share one destination.
func texts(to *[]string) openai.Field {
	one := func(at string, raw json.RawMessage) error {
		var text string
		if err := openai.String(&text)(at, raw); err != nil {
			return err
		}
		if text == "" {
			return openai.Invalid(at, "'%s' must not be empty.", at)
		}
		if *to = append(*to, text); len(*to) > maxDocuments {
			return openai.Invalid(at, "A request may have at most %d texts. Send several requests.", maxDocuments)
		}
		return nil
	}
	return func(param string, raw json.RawMessage) error {
		if len(*to) > 0 {
			return openai.Invalid(param, "'%s' is another name of a field that is present too. Send one of the two.", param)
		}
		if openai.Kind(raw) == "array" {
			return openai.Array(param, raw, one)
		}
		return one(param, raw)
	}
}

// Group is a query with the positions of its documents.
type Group struct {
	Query string
	At    []int
}

// Groups returns the documents by their query, so that each query is computed
// once.
func (r *ScoreRequest) Groups() []Group {
	var out []Group
	known := map[string]int{}
	for i := range r.Documents {
		query := r.Queries[min(i, len(r.Queries)-1)]
		n, ok := known[query]
		if !ok {
			n = len(out)
			known[query] = n
			out = append(out, Group{Query: query})
		}
		out[n].At = append(out[n].At, i)
	}
	return out
}

// ScoreAnswer is the response of POST /v1/score.
type ScoreAnswer struct {
	ID      string                `json:"id"`
	Object  string                `json:"object"`
	Created int64                 `json:"created"`
	Model   string                `json:"model"`
	Data    []Score               `json:"data"`
	Usage   openai.EmbeddingUsage `json:"usage"`
}

// Score is the score of one pair.
type Score struct {
	Index  int     `json:"index"`
	Object string  `json:"object"`
	Score  float32 `json:"score"`
}

// Answer builds the response from the scores of the pairs, in their order.
func (r *ScoreRequest) Answer(created int64, scores []float32, promptTokens int) ScoreAnswer {
	var b [4]byte
	rand.Read(b[:]) // never fails since Go 1.24
	a := ScoreAnswer{ID: "score-" + hex.EncodeToString(b[:]), Object: "list", Created: created, Model: r.Model, Data: []Score{},
		Usage: openai.EmbeddingUsage{PromptTokens: promptTokens, TotalTokens: promptTokens}}
	for i, s := range scores {
		a.Data = append(a.Data, Score{Index: i, Object: "score", Score: s})
	}
	return a
}
