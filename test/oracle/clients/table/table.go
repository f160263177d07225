// Package table holds the conformance table of the API: requests as official
// clients send them, and assertions on the responses, which hold for every client
// language, with and without a gateway.
//
// It owns the rows (rows.yaml), the list of clients, and the comparison of replies.
// It rejects a row without a want, an unknown name, and an exception without a
// reason. It sends nothing: command clients does.
//
// Start reading at Row, then Judge.
package table

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/yaml"
)

//go:embed rows.yaml
var rows []byte

// Client is one official client.
type Client struct {
	Name string
	// API that it speaks, as rows name it.
	API string
	// Error is the class of all its errors, if it has only one.
	Error string
}

// The clients, in the order of the page's columns.
func Clients() []Client {
	return []Client{
		{Name: "openai-python", API: "openai"},
		{Name: "openai-javascript", API: "openai"},
		{Name: "openai-go", API: "openai", Error: "Error"},
		{Name: "anthropic-python", API: "anthropic"},
		{Name: "anthropic-javascript", API: "anthropic"},
	}
}

// Row is one behaviour.
type Row struct {
	Name string `json:"row"`
	// API is openai or anthropic: its clients send the row.
	API string `json:"api"`
	// Says describes the behaviour for readers of the page.
	Says string `json:"says"`
	// Clients are those that support the row, and Why is what the others lack; none
	// means all clients of the API.
	Clients []string `json:"clients,omitempty"`
	Why     string   `json:"why,omitempty"`
	// Keys is true for a row that is only played against a gateway that requires API
	// keys.
	Keys  bool   `json:"keys,omitempty"`
	Steps []Step `json:"steps"`
	// Same are paths into the reply of the last step whose values are equal for all
	// clients and doors.
	Same []string `json:"same,omitempty"`
}

// Step is one request.
type Step struct {
	// Call is the method for the client's runner, such as chat.create.
	Call string `json:"call"`
	// Args are its arguments; "${name}" is a value that an earlier step kept.
	Args map[string]any `json:"args,omitempty"`
	// Extra are members of the body that the client does not define.
	Extra map[string]any `json:"extra,omitempty"`
	// Key is the API key that the client sends; empty means a valid one.
	Key string `json:"key,omitempty"`
	// Want has the expected values, by paths into the reply.
	Want map[string]any `json:"want"`
	// Keep names values of the reply, by paths, for later steps.
	Keep map[string]string `json:"keep,omitempty"`
}

// Refused reports whether the row is about an unsupported feature: every step is
// rejected as a bad request.
func (r Row) Refused() bool {
	for _, s := range r.Steps {
		if s.Want["error.class"] == nil || !same(s.Want["error.status"], 400.0) {
			return false
		}
	}
	return true
}

// For reports whether a client sends the row.
func (r Row) For(c Client) bool {
	return r.API == c.API && (len(r.Clients) == 0 || slices.Contains(r.Clients, c.Name))
}

// Rows returns the rows of the file.
func Rows() ([]Row, error) { return parse(rows) }

// parse reads rows and checks them.
func parse(raw []byte) ([]Row, error) {
	var out []Row
	if err := yaml.UnmarshalStrict(raw, &out); err != nil {
		return nil, fmt.Errorf("rows: %w", err)
	}
	seen := map[string]bool{}
	var errs []error
	for _, r := range out {
		if err := r.check(); err != nil {
			errs = append(errs, fmt.Errorf("row %q: %w", r.Name, err))
		}
		if seen[r.Name] {
			errs = append(errs, fmt.Errorf("row %q stands twice", r.Name))
		}
		seen[r.Name] = true
	}
	return out, errors.Join(errs...)
}

func (r Row) check() error {
	known := map[string]bool{}
	for _, c := range Clients() {
		if c.API == r.API {
			known[c.Name] = true
		}
	}
	switch {
	case r.Name == "" || r.Says == "" || len(r.Steps) == 0:
		return errors.New("a row has a name, a sentence and steps")
	case len(known) == 0:
		return fmt.Errorf("no client speaks %q", r.API)
	case (len(r.Clients) > 0) != (r.Why != ""):
		return errors.New("clients and why go together")
	}
	for _, name := range r.Clients {
		if !known[name] {
			return fmt.Errorf("%q is no client of %s", name, r.API)
		}
	}
	for i, s := range r.Steps {
		if s.Call == "" || len(s.Want) == 0 {
			return fmt.Errorf("step %d has no call, or wants nothing", i)
		}
		if (s.Key != "") != r.Keys {
			return fmt.Errorf("step %d: keys and a key in each step go together", i)
		}
	}
	return nil
}

// Wants is want as the client can show it: one that has a single class of errors
// has that.
func (c Client) Wants(want map[string]any) map[string]any {
	if _, ok := want["error.class"]; !ok || c.Error == "" {
		return want
	}
	out := maps.Clone(want)
	out["error.class"] = c.Error
	return out
}
