//go:build !race

package fuzzapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// fire sends one request to a handler and gives what is said of it.
func fire(t *testing.T, s shot, answer http.HandlerFunc) error {
	t.Helper()
	server := httptest.NewServer(answer)
	defer server.Close()
	h := &hostile{door: door{name: "test", url: server.URL, dial: dialer(server.URL)}, sent: map[string]int{}}
	h.fire(t.Context(), s)
	if h.sent[s.kind] != 1 {
		t.Errorf("%d requests are counted", h.sent[s.kind])
	}
	if len(h.errs) == 0 {
		return nil
	}
	return h.errs[0]
}

func refuse(e *openai.Error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { _ = dialect.Of(r.URL.Path).WriteError(w, e, "r") }
}

func TestShotsAreSentAndJudged(t *testing.T) {
	invalid := refuse(openai.Invalid("", "no"))
	whole := func(w http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != string(least(r.URL.Path)) {
			invalid(w, r)
		}
	}
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	chunks := post(dialect.PathChat, least(dialect.PathChat), answer)
	chunks.length, chunks.pieces = -1, 5
	cut := post(dialect.PathChat, least(dialect.PathChat)[:9], closing)
	cut.length = 100
	for name, tc := range map[string]struct {
		shot   shot
		answer http.HandlerFunc
		wrong  string
	}{
		"refused as wanted":            {shot: post(dialect.PathMessages, []byte("{"), refusal), answer: invalid},
		"in chunks":                    {shot: chunks, answer: whole},
		"cut off":                      {shot: cut, answer: whole},
		"cut off, and answered":        {shot: cut, answer: func(http.ResponseWriter, *http.Request) {}, wrong: "answered 200"},
		"broken":                       {shot: post(dialect.PathChat, nil, anything), answer: refuse(openai.Internal(io.ErrUnexpectedEOF)), wrong: "not promised"},
		"another route's shape":        {shot: post(dialect.PathRerank, nil, anything), answer: func(w http.ResponseWriter, _ *http.Request) { _ = openai.WriteError(w, openai.Invalid("", "no")) }, wrong: "shape"},
		"a closed connection":          {shot: post(dialect.PathChat, nil, anything), answer: hangUp, wrong: "no answer"},
		"a closed connection, allowed": {shot: post(dialect.PathChat, nil, closing), answer: hangUp},
		"a stream that breaks off": {shot: post(dialect.PathChat, nil, answer), answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {}\n\n")
		}, wrong: "the stream ends"},
	} {
		tc.shot.kind = name
		err := fire(t, tc.shot, tc.answer)
		if tc.wrong == "" && err != nil || tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
			t.Errorf("%s: %v, want %q", name, err, tc.wrong)
		}
	}
}

func TestARunEndsWithItsContextAndTellsWhatIsMissing(t *testing.T) {
	server := httptest.NewServer(refuse(openai.Invalid("", "no")))
	defer server.Close()
	asking, end := context.WithCancel(t.Context())
	end()
	h := &hostile{door: door{name: "test", url: server.URL, dial: dialer(server.URL)}}
	if err := h.run(asking, t.Context()); err == nil || !strings.Contains(err.Error(), "was sent") {
		t.Errorf("a run that sent nothing: %v", err)
	}
}
