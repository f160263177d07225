//go:build !race

package fuzzapi

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
)

func TestAnswersAreJudged(t *testing.T) {
	const (
		plain  = `{"error":{"message":"no","type":"t","param":null,"code":"c"}}`
		double = `{"error":{"message":"no","type":"t","param":null,"code":"c"},"message":"no","detail":"no"}`
		typed  = `{"type":"error","error":{"type":"t","message":"no"},"request_id":"r"}`
	)
	full := strings.Replace(plain, `"c"`, `"overloaded"`, 1)
	for name, tc := range map[string]struct {
		path   string
		status int
		kind   string
		code   string // of the header
		body   string
		good   bool
	}{
		"an answer":                         {path: dialect.PathChat, status: 200, kind: "text/plain", good: true},
		"a refusal":                         {path: dialect.PathChat, status: 400, kind: "application/json", body: plain, good: true},
		"with a query":                      {path: dialect.PathRerank + "?a=b", status: 400, kind: "application/json", body: double, good: true},
		"a refusal of rerank":               {path: dialect.PathRerank, status: 400, kind: "application/json", body: double, good: true},
		"a refusal of Anthropic":            {path: dialect.PathMessages, status: 400, kind: "application/json", body: typed, good: true},
		"overloaded":                        {path: dialect.PathChat, status: 503, kind: "application/json", body: full, good: true},
		"overloaded, of Anthropic":          {path: dialect.PathMessages, status: 503, kind: "application/json", code: "overloaded", body: typed, good: true},
		"text":                              {path: dialect.PathChat, status: 400, kind: "text/plain", body: plain},
		"no JSON":                           {path: dialect.PathChat, status: 400, kind: "application/json", body: "no"},
		"more than JSON":                    {path: dialect.PathChat, status: 400, kind: "application/json", body: plain + "{}"},
		"another route's shape":             {path: dialect.PathRerank, status: 400, kind: "application/json", body: plain},
		"OpenAI's shape of Anthropic":       {path: dialect.PathMessages, status: 400, kind: "application/json", body: plain},
		"Anthropic's shape of OpenAI":       {path: dialect.PathChat, status: 400, kind: "application/json", body: typed},
		"no sentence":                       {path: dialect.PathChat, status: 400, kind: "application/json", body: strings.Replace(plain, `"no"`, `""`, 1)},
		"no sentence for Jina's clients":    {path: dialect.PathRerank, status: 400, kind: "application/json", body: strings.Replace(double, `"detail":"no"`, `"detail":""`, 1)},
		"no sentence of Anthropic":          {path: dialect.PathMessages, status: 400, kind: "application/json", body: strings.Replace(typed, `"no"`, `""`, 1)},
		"an internal error":                 {path: dialect.PathChat, status: 500, kind: "application/json", body: strings.Replace(plain, `"c"`, `"internal_error"`, 1)},
		"503 without a reason":              {path: dialect.PathChat, status: 503, kind: "application/json", body: strings.Replace(plain, `"c"`, `null`, 1)},
		"503 of Anthropic without a reason": {path: dialect.PathMessages, status: 503, kind: "application/json", body: typed},
		"507 with a reason of 503":          {path: dialect.PathChat, status: 507, kind: "application/json", body: full},
	} {
		h := http.Header{"Content-Type": {tc.kind}, http.CanonicalHeaderKey(dialect.HeaderCode): {tc.code}}
		if err := judge(tc.path, tc.status, h, []byte(tc.body)); (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStreamsAreJudged(t *testing.T) {
	for name, tc := range map[string]struct {
		path, body string
		good       bool
	}{
		"whole":                {path: dialect.PathChat, body: "data: {}\n\ndata: [DONE]\n\n", good: true},
		"whole, of Anthropic":  {path: dialect.PathMessages, body: "event: message_stop\ndata: {}\n\n", good: true},
		"whole, of a response": {path: dialect.PathResponses, body: "event: response.incomplete\ndata: {}\n\n", good: true},
		"without an end":       {path: dialect.PathChat, body: "data: {}\n\n"},
		"cut":                  {path: dialect.PathChat, body: "data: {}\n\ndata: [DONE]"},
		"an error":             {path: dialect.PathChat, body: "data: {}\n\ndata: {\"error\":{}}\n\n"},
		"an error, Anthropic":  {path: dialect.PathMessages, body: "event: error\ndata: {}\n\n"},
		"a failure":            {path: dialect.PathResponses, body: "event: response.failed\ndata: {}\n\n"},
	} {
		if err := judgeStream(tc.path, []byte(tc.body)); (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWantedVerdicts(t *testing.T) {
	refused := []byte(`{"error":{"message":"no","type":"t","param":null,"code":"c"}}`)
	for name, tc := range map[string]struct {
		want   want
		status int
		good   bool
	}{
		"a refusal is answered": {want: refusal, status: 200}, "a refusal": {want: refusal, status: 400, good: true}, "an answer is refused": {want: answer, status: 400}, "an answer": {want: answer, status: 200, good: true},
		"anything": {want: anything, status: 400, good: true}, "what never ended is answered": {want: closing, status: 200},
	} {
		resp := &http.Response{StatusCode: tc.status, Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"r"}}}
		if err := (shot{path: dialect.PathChat, want: tc.want}).judge(resp, refused); (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
	over := []byte(`{"error":{"message":"The answer did not end in time.","type":"service_unavailable_error","param":null,"code":"timeout"}}`)
	resp := &http.Response{StatusCode: 504, Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"r"}}}
	for want, good := range map[want]bool{late: true, anything: false} {
		if err := (shot{path: dialect.PathChat, want: want}).judge(resp, over); (err == nil) != good {
			t.Errorf("a time that is over, where %d was wanted: %v", want, err)
		}
	}
}

func TestLeaksAreFound(t *testing.T) {
	before := rest{goroutines: map[string]float64{"gateway": 50, "agent": 60}, files: map[string]float64{"gateway": 10, "agent": 12}, engines: []engine{{pid: 5, files: 9}}}
	copyOf := func() rest {
		r := before
		r.goroutines, r.files, r.engines = maps.Clone(before.goroutines), maps.Clone(before.files), slices.Clone(before.engines)
		return r
	}
	if err := leaked(before, copyOf()); err != nil {
		t.Fatal(err)
	}
	for name, leak := range map[string]func(*rest){
		"a request at the gateway":      func(r *rest) { r.inFlight = 1 },
		"goroutines of the gateway":     func(r *rest) { r.goroutines["gateway"] = 50 + slack + 1 },
		"goroutines of the agent":       func(r *rest) { r.goroutines["agent"] = 60 + slack + 1 },
		"files of the gateway":          func(r *rest) { r.files["gateway"] = 10 + slack + 1 },
		"files of the agent":            func(r *rest) { r.files["agent"] = 12 + slack + 1 },
		"files of an engine":            func(r *rest) { r.engines[0].files = 9 + slack + 1 },
		"a request in an engine":        func(r *rest) { r.engines[0].running = 1 },
		"one that waits in an engine":   func(r *rest) { r.engines[0].queued = 1 },
		"keys and values":               func(r *rest) { r.engines[0].kv = 1 },
		"an engine that was replaced":   func(r *rest) { r.engines[0].pid = 6 },
		"an engine that went":           func(r *rest) { r.engines = nil },
		"an engine that went, and came": func(r *rest) { r.reclaims = 1 },
	} {
		after := copyOf()
		leak(&after)
		if leaked(before, after) == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

func TestEveryKindMakesARequestForEveryRoute(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range kinds {
		for _, path := range paths {
			for range 2 {
				if s := k.make(rng, path); s.method == "" || s.path == "" || s.length != 0 && s.length < -1 {
					t.Fatalf("%s of %s: %+v", k.name, path, s)
				}
			}
		}
	}
}

func TestARunThatAskedNothingIsFound(t *testing.T) {
	for name, tc := range map[string]struct {
		phases, counts string
		good           bool
	}{
		"both": {phases: "fuzzing", counts: `{"statuses":{"200":1,"400":1}}`, good: true}, "no answer": {phases: "fuzzing", counts: `{"statuses":{"400":1}}`}, "no refusal": {phases: "fuzzing", counts: `{"statuses":{"200":1}}`},
		"answers along links": {phases: "stateful", counts: `{"statuses":{"200":1}}`, good: true}, "nothing": {phases: "stateful", counts: `{}`}, "no counts": {phases: "stateful"},
	} {
		path := filepath.Join(t.TempDir(), "tally")
		if err := os.WriteFile(path, []byte(tc.counts), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTally(path, tc.phases); (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Python and Go have to promise the same.
func TestTheHooksPromiseTheSame(t *testing.T) {
	b, err := os.ReadFile("hooks.py")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(b), "PROMISED = ")
	line, _, _ = strings.Cut(line, "\n")
	for status, codes := range promised {
		_, set, _ := strings.Cut(line, map[int]string{503: "503: {", 507: "507: {"}[status])
		set, _, _ = strings.Cut(set, "}")
		var has []string
		for code := range strings.SplitSeq(set, ", ") {
			has = append(has, strings.Trim(code, `"`))
		}
		if slices.Sort(has); !slices.Equal(has, slices.Sorted(slices.Values(codes))) {
			t.Errorf("%d: %v in hooks.py, %v here", status, has, codes)
		}
	}
}
