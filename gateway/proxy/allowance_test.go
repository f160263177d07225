package proxy

import (
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// A request can use as many tokens as its answers may have, and as its prompt may become.
func TestAllowanceOfARequest(t *testing.T) {
	const context = unknownContext
	for name, tc := range map[string]struct {
		path, body string
		want       agentapi.TokenCount
	}{
		"a prompt":       {path: dialect.PathCompletions, body: `{"model":"m","prompt":"x","max_tokens":5}`, want: agentapi.TokenCount{Prompt: 1, Generated: 5}},
		"no limit":       {path: dialect.PathCompletions, body: `{"model":"m","prompt":[1,2]}`, want: agentapi.TokenCount{Prompt: 1, Generated: context}},
		"many answers":   {path: dialect.PathCompletions, body: `{"model":"m","prompt":["x","y"],"n":3,"max_tokens":5}`, want: agentapi.TokenCount{Prompt: 6, Generated: 30}},
		"stored items":   {path: dialect.PathResponses, body: `{"model":"m","input":"x","previous_response_id":"r","max_output_tokens":5}`, want: agentapi.TokenCount{Prompt: -1, Generated: 5}},
		"texts to embed": {path: dialect.PathEmbeddings, body: `{"model":"m","input":["x","y"]}`, want: agentapi.TokenCount{Prompt: 2}},
		"documents":      {path: dialect.PathRerank, body: `{"model":"m","query":"q","documents":["x","y","z"]}`, want: agentapi.TokenCount{Prompt: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := openai.DecodeEnvelope([]byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			want := tc.want
			if want.Prompt *= int64(tokensPerByte*len(tc.body) + templateTokens); want.Prompt < 0 {
				want.Prompt = context
			}
			if got := allowanceOf(tc.path, e, []byte(tc.body), nil); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}
