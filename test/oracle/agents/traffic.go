package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// traffic is what a program's requests and their responses contained.
type traffic struct {
	// Requests counts them by path.
	Requests map[string]int
	// Calls are the names of called tools, in order.
	Calls []string
	// Input and Output are the tokens that responses reported, Cached those of the
	// input that were cached.
	Input, Output, Cached int
	// Ignored are the fields that responses named as ignored, sorted.
	Ignored []string
}

// inspect reads exchanges. An error is a response that is no success, or one
// without usage where there must be one. Programs also look with GET and HEAD for
// what a server may lack.
func inspect(all []exchange) (traffic, error) {
	t := traffic{Requests: map[string]int{}}
	for _, e := range all {
		if e.Method != http.MethodPost {
			continue
		}
		t.Requests[e.Path]++
		if e.Status == 0 {
			continue // the program left before the response
		}
		if e.Status != http.StatusOK {
			return t, fmt.Errorf("%s %s was answered with %d (%v): %s\nit was\n%.3000s", e.Method, e.Path, e.Status, e.Failed, e.Response, e.Request)
		}
		t.Ignored = append(t.Ignored, e.Ignored...)
		if strings.HasSuffix(e.Path, "_tokens") {
			continue
		}
		r := reader{called: map[string]bool{}}
		if err := r.readAll(e.Response); err != nil {
			return t, fmt.Errorf("%s: %w: %s", e.Path, err, e.Response)
		}
		if e.Ended && r.output == 0 {
			return t, fmt.Errorf("a response of %s reported no usage: %s", e.Path, e.Response)
		}
		t.Calls = append(t.Calls, r.calls...)
		t.Input, t.Output, t.Cached = t.Input+r.input, t.Output+r.output, t.Cached+r.cached
	}
	slices.Sort(t.Ignored)
	t.Ignored = slices.Compact(t.Ignored)
	return t, nil
}

// reader collects what one response reports, in the words of any of the APIs. A
// stream reports a call, and usage, more than once.
type reader struct {
	calls                 []string
	called                map[string]bool // by id
	input, output, cached int
}

// readAll reads the JSON objects of a response: its body, or the data of its
// events.
func (r *reader) readAll(body []byte) error {
	all := [][]byte{body}
	if bytes.Contains(body, []byte("data: ")) {
		all = nil
		whole := body[:bytes.LastIndexByte(body, '\n')+1] // the last line of a stream that was cut short may be half a one
		for line := range bytes.Lines(whole) {
			if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok && bytes.HasPrefix(data, []byte("{")) {
				all = append(all, data)
			}
		}
	}
	for _, raw := range all {
		var v map[string]any
		if err := json.Unmarshal(raw, &v); err != nil {
			return err
		}
		r.read(v)
	}
	return nil
}

func (r *reader) read(v any) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			r.read(one)
		}
	case map[string]any:
		r.call(v)
		if usage, ok := v["usage"].(map[string]any); ok {
			r.use(usage)
		}
		for _, one := range v {
			r.read(one)
		}
	}
}

func (r *reader) call(v map[string]any) {
	named, id := v, v["id"]
	switch v["type"] {
	case "function": // chat completions; Responses' definitions of tools have no id
		named, _ = v["function"].(map[string]any)
	case "function_call", "custom_tool_call":
		id = v["call_id"]
	case "tool_use":
	default:
		return
	}
	key, _ := id.(string)
	if name, ok := named["name"].(string); ok && key != "" && !r.called[key] {
		r.called[key], r.calls = true, append(r.calls, name)
	}
}

// use keeps the largest numbers, which are the last of a stream.
func (r *reader) use(usage map[string]any) {
	number := func(names ...string) (n int) {
		for _, name := range names {
			if f, ok := usage[name].(float64); ok {
				n = max(n, int(f))
			}
		}
		return n
	}
	r.input = max(r.input, number("prompt_tokens", "input_tokens"))
	r.output = max(r.output, number("completion_tokens", "output_tokens"))
	r.cached = max(r.cached, number("cache_read_input_tokens"))
	for _, name := range []string{"prompt_tokens_details", "input_tokens_details"} {
		if details, ok := usage[name].(map[string]any); ok {
			if f, ok := details["cached_tokens"].(float64); ok {
				r.cached = max(r.cached, int(f))
			}
		}
	}
}
