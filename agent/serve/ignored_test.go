package serve_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// everyRoute is a request for each route that decodes a body.
var everyRoute = map[string]string{
	dialect.PathChat:        `"model":"m","messages":[{"role":"user","content":"hi"}]`,
	dialect.PathCompletions: `"model":"m","prompt":"hi"`,
	dialect.PathMessages:    `"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`,
	dialect.PathCountTokens: `"model":"m","messages":[{"role":"user","content":"hi"}]`,
	dialect.PathResponses:   `"model":"m","input":"hi"`,
	dialect.PathEmbeddings:  `"model":"r","input":"hi"`,
	dialect.PathRerank:      `"model":"r","query":"q","documents":["a"]`,
	dialect.PathRerankV2:    `"model":"r","query":"q","documents":["a"]`,
}

func everyRoutePort(t *testing.T) *port {
	return readerPort(t, servetest.Reader{
		Embed: func(context.Context, *wire.EmbedRequest) (*wire.EmbedResponse, error) {
			return &wire.EmbedResponse{Vectors: []*wire.Vector{{Values: []float32{1}}}}, nil
		},
		Rerank: func(context.Context, *wire.RerankRequest) (*wire.RerankResponse, error) {
			return &wire.RerankResponse{Scores: []float32{1}}, nil
		},
	})
}

func TestEveryRouteNamesIgnoredFieldsInTheHeaderOfItsAnswer(t *testing.T) {
	for path, body := range everyRoute {
		for _, stream := range []string{"", `"stream":true,`} {
			if stream != "" && !strings.Contains(body, `"m"`) || stream != "" && path == dialect.PathCountTokens {
				continue // never streamed
			}
			p := everyRoutePort(t)
			resp := p.do("POST", path+"?beta=true", `{`+stream+body+`,"surprise":1,"other":{},"surprise_null":null}`)
			if got := read(t, resp); resp.StatusCode != http.StatusOK || resp.Header.Get(agentapi.HeaderIgnored) != "surprise, other" {
				t.Errorf("%s, %q: %d, ignored %q: %s", path, stream, resp.StatusCode, resp.Header.Get(agentapi.HeaderIgnored), got)
			}
			resp = p.do("POST", path, `{`+stream+body+`}`)
			if read(t, resp); resp.Header.Values(agentapi.HeaderIgnored) != nil {
				t.Errorf("%s, %q: nothing was ignored, and the header is %q", path, stream, resp.Header.Get(agentapi.HeaderIgnored))
			}
		}
	}
}

func TestEveryRouteRefusesIgnoredFieldsWhenTheGatewayIsStrict(t *testing.T) {
	for path, body := range everyRoute {
		p := everyRoutePort(t)
		resp := p.do("POST", path, `{`+body+`,"surprise":1}`, agentapi.HeaderStrictFields, "true")
		e := dialect.ParseError(resp.StatusCode, resp.Header, []byte(read(t, resp)))
		if e.Status != http.StatusBadRequest || e.Code != openai.CodeUnknownParameter {
			t.Errorf("%s: %v", path, e)
		}
	}
}
