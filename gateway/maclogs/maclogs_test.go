package maclogs

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/route"
)

type agent func(*http.Request) (*http.Response, error)

func (a agent) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func TestLogsComeFromTheirMac(t *testing.T) {
	answer := func(m route.Mac) http.RoundTripper {
		return agent(func(r *http.Request) (*http.Response, error) {
			switch {
			case m.Name == "away":
				return nil, errors.New("no route to host")
			case m.Name == "endless":
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(io.LimitReader(zeros{}, 1<<30))}, nil
			case r.URL.Path == agentapi.PathLogs+"/000000000000":
				return &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader("{}"))}, nil
			case m.Name == "b" && r.URL.RawQuery == "bytes=":
				return &http.Response{StatusCode: http.StatusBadRequest, Body: io.NopCloser(strings.NewReader("{}"))}, nil
			case m.Name == "fails":
				return &http.Response{StatusCode: http.StatusInternalServerError, Body: io.NopCloser(strings.NewReader("{}"))}, nil
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(m.Name + " " + r.URL.Path + " " + r.URL.RawQuery))}, nil
		})
	}
	h := New(func() []route.Mac {
		return []route.Mac{{Name: "a"}, {Name: "b"}, {Name: "away"}, {Name: "fails"}, {Name: "endless"}}
	}, answer)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/logs/a?bytes=5":                 {http.StatusOK, "a /metalfleet/v1/logs bytes=5"},
		"/logs/b/0123456789ab?bytes=7&x=": {http.StatusOK, "b /metalfleet/v1/logs/0123456789ab bytes=7"},
		"/logs/a/000000000000?bytes=5":    {http.StatusNotFound, "Mac a has no such log"},
		"/logs/b":                         {http.StatusBadRequest, "bytes must be a number from 1 to"},
		"/logs/fails?bytes=5":             {http.StatusBadGateway, "status 500"},
		"/logs/c?bytes=5":                 {http.StatusNotFound, "knows no Mac c"},
		"/logs/away?bytes=5":              {http.StatusBadGateway, "no route to host"},
		"/metrics":                        {http.StatusNotFound, ""},
	} {
		if status, text := get(path); status != want.status || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %q, want %d %q", path, status, text, want.status, want.text)
		}
	}
	if status, text := get("/logs/endless?bytes=5"); status != http.StatusOK || len(text) != agentapi.MaxLogBytes {
		t.Errorf("a Mac that sends without end: %d, %d bytes", status, len(text))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestOnlyTheLoopbackInterfaceServesLogs(t *testing.T) {
	for _, address := range []string{":0", "0.0.0.0:0", "192.0.2.1:0", "[::]:0"} {
		if l, err := Listen(address); err == nil {
			t.Errorf("%s is accepted", address)
			_ = l.Close()
		}
	}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
