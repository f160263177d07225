package rerank

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/api/openai"
)

// TextsRequest is a body of POST /rerank as clients of text-embeddings-inference
// send it: texts in place of documents. The model is required, because more than one
// is served.
type TextsRequest struct {
	Model, Query string
	Texts        []string
	// TopN bounds the results; nil returns all.
	TopN *int
	// Echo includes the texts in the results.
	Echo     bool
	Truncate bool
}

// HasTexts reports whether a body is a TextsRequest, whose response has another
// shape.
func HasTexts(body []byte) bool {
	if !bytes.Contains(body, []byte(`"texts"`)) || !json.Valid(body) {
		return false
	}
	for name := range openai.Members(body) {
		if string(name) == "texts" {
			return true
		}
	}
	return false
}

// unusedOfTexts are the fields of text-embeddings-inference without effect.
var unusedOfTexts = []openai.Unused{
	{Name: "documents", Why: "the texts are scored", Refused: true},
	{Name: "raw_scores", Why: "scores are between 0 and 1", Neutral: []string{"false"}, Refused: true},
	{Name: "truncation_direction", Why: "texts are cut at their end", Neutral: []string{`"right"`, `"Right"`}, Refused: true},
}

// DecodeTexts reads a request body. It returns an *openai.Error.
func DecodeTexts(d *openai.Decoder, body []byte) (*TextsRequest, error) {
	if err := openai.CheckJSON(body); err != nil {
		return nil, err
	}
	r := &TextsRequest{Truncate: true}
	err := d.Object(body, "", map[string]openai.Field{
		"model":       openai.String(&r.Model),
		"query":       openai.String(&r.Query),
		"texts":       texts(&r.Texts),
		"top_n":       openai.Optional(openai.Int(&r.TopN, 1, math.MaxInt32)),
		"return_text": openai.Optional(openai.Bool(&r.Echo)),
		"truncate":    openai.Optional(openai.Bool(&r.Truncate)),
	}, unusedOfTexts)
	switch {
	case err != nil:
		return nil, err
	case r.Model == "":
		return nil, openai.Required("model")
	case r.Query == "":
		return nil, openai.Required("query")
	case len(r.Texts) == 0:
		return nil, openai.Required("texts")
	}
	return r, nil
}

// Rank is the score of one text; Index is its position in the request.
type Rank struct {
	Index int     `json:"index"`
	Score float32 `json:"score"`
	Text  *string `json:"text,omitempty"`
}

// Ranks builds the response from the scores of the texts, in the order of the
// request. It sorts by descending score, and texts with equal scores by position.
func (r *TextsRequest) Ranks(scores []float32) []Rank {
	out := make([]Rank, len(scores))
	for i, s := range scores {
		out[i] = Rank{Index: i, Score: s}
	}
	slices.SortStableFunc(out, func(x, y Rank) int { return cmp.Compare(y.Score, x.Score) })
	if r.TopN != nil {
		out = out[:min(*r.TopN, len(out))]
	}
	for i := range out {
		if r.Echo {
			text := r.Texts[out[i].Index] // a pointer into the list would keep all texts
			out[i].Text = &text
		}
	}
	return out
}
