package proxy_test

import (
	"io"
	"net/http"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
)

// TestAnErrorEventIsNoAnswer: streams that end with an error of the Mac eject its replica, others do not.
func TestAnErrorEventIsNoAnswer(t *testing.T) {
	const created = "event: response.created\ndata: {\"response\":{}}\n\n"
	for name, tc := range map[string]struct {
		path, body, stream string
		ejected            bool
	}{
		"OpenAI":                   {chatPath, `{"model":"m","messages":[],"stream":true}`, "data: {\"error\":{\"type\":\"server_error\"}}\n\n", true},
		"OpenAI, after a token":    {chatPath, `{"model":"m","messages":[],"stream":true}`, "data: {\"choices\":[]}\n\ndata: {\"error\":{\"type\":\"server_error\"}}\n\n", true},
		"OpenAI, a wrong request":  {chatPath, `{"model":"m","messages":[],"stream":true}`, "data: {\"error\":{\"type\":\"invalid_request_error\"}}\n\n", false},
		"OpenAI, an answer":        {chatPath, `{"model":"m","messages":[],"stream":true}`, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", false},
		"OpenAI, and an end":       {chatPath, `{"model":"m","messages":[],"stream":true}`, "data: {\"error\":{\"type\":\"server_error\"}}\n\ndata: [DONE]\n\n", true},
		"Anthropic":                {dialect.PathMessages, `{"model":"m","messages":[],"max_tokens":1,"stream":true}`, "event: error\ndata: {\"error\":{\"type\":\"api_error\"}}\n\n", true},
		"Anthropic, and an end":    {dialect.PathMessages, `{"model":"m","messages":[],"max_tokens":1,"stream":true}`, "event: ping\ndata: {}\n\nevent: error\ndata: {}\n\nevent: message_stop\ndata: {}\n\n", true},
		"Anthropic, short of room": {dialect.PathMessages, `{"model":"m","messages":[],"max_tokens":1,"stream":true}`, "event: error\ndata: {\"error\":{\"type\":\"overloaded_error\"}}\n\n", false},
		"Responses":                {dialect.PathResponses, `{"model":"m","input":"x","stream":true}`, created + "event: error\ndata: {\"code\":\"engine_failed\"}\n\n", true},
		"Responses, and cancelled": {dialect.PathResponses, `{"model":"m","input":"x","stream":true}`, created + "event: response.failed\ndata: {\"response\":{\"status\":\"cancelled\",\"error\":null}}\n\n", false},
		"Responses, of any kind":   {dialect.PathResponses, `{"model":"m","input":"x","stream":true}`, created + "event: response.failed\ndata: {\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\"}}}\n\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(rw, tc.stream)
			})
			for range 5 {
				if resp := w.do("POST", tc.path, tc.body); resp.StatusCode != http.StatusOK {
					t.Fatal(resp.Status)
				} else {
					read(t, resp)
				}
			}
			if !tc.ejected {
				if w.counter("replicas_ejected_total") > 0 {
					t.Error("the replica is ejected")
				}
				return
			}
			eventually(t, "the replica is ejected", func() bool { return w.counter("replicas_ejected_total") > 0 })
		})
	}
}
