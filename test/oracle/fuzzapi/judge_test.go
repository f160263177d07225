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
		"an answer":                         {dialect.PathChat, 200, "text/plain", "", "", true},
		"a refusal":                         {dialect.PathChat, 400, "application/json", "", plain, true},
		"with a query":                      {dialect.PathRerank + "?a=b", 400, "application/json", "", double, true},
		"a refusal of rerank":               {dialect.PathRerank, 400, "application/json", "", double, true},
		"a refusal of Anthropic":            {dialect.PathMessages, 400, "application/json", "", typed, true},
		"overloaded":                        {dialect.PathChat, 503, "application/json", "", full, true},
		"overloaded, of Anthropic":          {dialect.PathMessages, 503, "application/json", "overloaded", typed, true},
		"text":                              {dialect.PathChat, 400, "text/plain", "", plain, false},
		"no JSON":                           {dialect.PathChat, 400, "application/json", "", "no", false},
		"more than JSON":                    {dialect.PathChat, 400, "application/json", "", plain + "{}", false},
		"another route's shape":             {dialect.PathRerank, 400, "application/json", "", plain, false},
		"OpenAI's shape of Anthropic":       {dialect.PathMessages, 400, "application/json", "", plain, false},
		"Anthropic's shape of OpenAI":       {dialect.PathChat, 400, "application/json", "", typed, false},
		"no sentence":                       {dialect.PathChat, 400, "application/json", "", strings.Replace(plain, `"no"`, `""`, 1), false},
		"no sentence for Jina's clients":    {dialect.PathRerank, 400, "application/json", "", strings.Replace(double, `"detail":"no"`, `"detail":""`, 1), false},
		"no sentence of Anthropic":          {dialect.PathMessages, 400, "application/json", "", strings.Replace(typed, `"no"`, `""`, 1), false},
		"an internal error":                 {dialect.PathChat, 500, "application/json", "", strings.Replace(plain, `"c"`, `"internal_error"`, 1), false},
		"503 without a reason":              {dialect.PathChat, 503, "application/json", "", strings.Replace(plain, `"c"`, `null`, 1), false},
		"503 of Anthropic without a reason": {dialect.PathMessages, 503, "application/json", "", typed, false},
		"507 with a reason of 503":          {dialect.PathChat, 507, "application/json", "", full, false},
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
		"whole":                {dialect.PathChat, "data: {}\n\ndata: [DONE]\n\n", true},
		"whole, of Anthropic":  {dialect.PathMessages, "event: message_stop\ndata: {}\n\n", true},
		"whole, of a response": {dialect.PathResponses, "event: response.incomplete\ndata: {}\n\n", true},
		"without an end":       {dialect.PathChat, "data: {}\n\n", false},
		"cut":                  {dialect.PathChat, "data: {}\n\ndata: [DONE]", false},
		"an error":             {dialect.PathChat, "data: {}\n\ndata: {\"error\":{}}\n\n", false},
		"an error, Anthropic":  {dialect.PathMessages, "event: error\ndata: {}\n\n", false},
		"a failure":            {dialect.PathResponses, "event: response.failed\ndata: {}\n\n", false},
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
		"a refusal is answered": {refusal, 200, false}, "a refusal": {refusal, 400, true}, "an answer is refused": {answer, 400, false}, "an answer": {answer, 200, true},
		"anything": {anything, 400, true}, "what never ended is answered": {closing, 200, false},
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
		"both": {"fuzzing", `{"statuses":{"200":1,"400":1}}`, true}, "no answer": {"fuzzing", `{"statuses":{"400":1}}`, false}, "no refusal": {"fuzzing", `{"statuses":{"200":1}}`, false},
		"answers along links": {"stateful", `{"statuses":{"200":1}}`, true}, "nothing": {"stateful", `{}`, false}, "no counts": {"stateful", ``, false},
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
