package proxy

import (
	"errors"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/api/responses"
)

// The envelope of a request has the members that the agent reads on its route, and none that the
// agent ignores.
func TestMembersAreThoseThatTheAgentReads(t *testing.T) {
	agent := map[string]func(*openai.Decoder, []byte) error{
		dialect.PathChat:        func(d *openai.Decoder, body []byte) error { _, err := d.Chat(body); return err },
		dialect.PathCompletions: func(d *openai.Decoder, body []byte) error { _, err := d.Completion(body); return err },
		dialect.PathEmbeddings:  func(d *openai.Decoder, body []byte) error { _, err := d.Embedding(body); return err },
		dialect.PathMessages:    func(d *openai.Decoder, body []byte) error { _, err := anthropic.Decode(d, body); return err },
		dialect.PathCountTokens: func(d *openai.Decoder, body []byte) error { _, err := anthropic.DecodeCount(d, body); return err },
		dialect.PathResponses:   func(d *openai.Decoder, body []byte) error { _, err := responses.Decode(d, body); return err },
		dialect.PathInputTokens: func(d *openai.Decoder, body []byte) error { _, err := responses.DecodeCount(d, body); return err },
		dialect.PathRerank:      func(d *openai.Decoder, body []byte) error { _, err := rerank.Decode(d, body, rerank.V1); return err },
		dialect.PathRerankV2:    func(d *openai.Decoder, body []byte) error { _, err := rerank.Decode(d, body, rerank.V2); return err },
		dialect.PathScore:       func(d *openai.Decoder, body []byte) error { _, err := rerank.DecodeScore(d, body); return err },
	}
	texts := func(d *openai.Decoder, body []byte) error { _, err := rerank.DecodeTexts(d, body); return err }
	for _, path := range forwarded {
		for _, name := range []string{"messages", "prompt", "input", "system", "instructions", "tools", "n", "documents", "texts", "text_1", "text_2", "query", "queries", "instruction",
			"max_tokens", "max_completion_tokens", "max_output_tokens", "previous_response_id", "background"} {
			decode := agent[path]
			if path == dialect.PathRerank && name == "texts" {
				decode = texts
			}
			var d openai.Decoder
			var e *openai.Error
			err := decode(&d, []byte(`{"model":"m","`+name+`":{"x":1}}`)) // an object, which none of them is
			if reads := errors.As(err, &e) && e.Param == name && e.Code == openai.CodeInvalidValue; reads != slices.Contains(membersOf[path], name) {
				t.Errorf("%s: the agent reads %s: %t (%v), the gateway: %t", path, name, reads, err, !reads)
			}
		}
	}
}
