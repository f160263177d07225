//go:build oracle

package grammar

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/grammar"
)

// group is one schema of the suite and its instances.
type group struct {
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Tests       []struct {
		Description string          `json:"description"`
		Data        json.RawMessage `json:"data"`
		Valid       bool            `json:"valid"`
	} `json:"tests"`
}

// tally of a suite.
type tally struct {
	groups, refused, invalid, taken, valid int
	why                                    map[string]int
	wrong                                  []string
}

// least of the valid instances are let through: the others have members beyond
// those listed, 1.0 for 1, or names in an order that we do not write.
const least = 0.7

// suites goes through both dialects.
func suites(o options) error {
	for _, dialect := range []string{"draft2020-12", "draft7"} {
		t := tally{why: map[string]int{}}
		files, err := filepath.Glob(filepath.Join(o.folder, "source", "json", "tests", dialect, "*.json"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("no suite of %s under %s; make test-oracle SUITE=grammar installs it (%v)", dialect, o.folder, err)
		}
		formats, err := filepath.Glob(filepath.Join(o.folder, "source", "json", "tests", dialect, "optional", "format", "*.json"))
		if err != nil {
			return err
		}
		for _, file := range slices.Concat(files, formats) {
			raw, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			var groups []group
			if err := json.Unmarshal(raw, &groups); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			// In the mandatory part a format says nothing of validity, as we take it to.
			if filepath.Base(file) == "format.json" {
				continue
			}
			for _, g := range groups {
				t.judge(filepath.Base(file), g)
			}
		}
		if err := t.tell(dialect); err != nil {
			return err
		}
	}
	return nil
}

func (t *tally) judge(file string, g group) {
	t.groups++
	compiled, err := grammar.Compile(context.Background(), grammar.Spec{Kind: grammar.JSONSchema, Source: string(g.Schema)})
	unsatisfiable := err != nil && strings.Contains(err.Error(), "cannot be satisfied")
	if err != nil && !unsatisfiable {
		t.refused++
		keyword := "other"
		if e, ok := err.(*grammar.Error); ok && e.Keyword != "" {
			keyword = e.Keyword
		}
		t.why[keyword]++
		return
	}
	words := Words(256)
	var table *grammar.Table
	if compiled != nil {
		table = grammar.NewTable(compiled, grammar.NewVocabulary(len(words), func(id int32) []byte { return words[id] }))
	}
	for _, test := range g.Tests {
		taken := table != nil && slices.ContainsFunc(orders(test.Data), func(text string) bool {
			m := table.Match(false)
			return m.Advance([]byte(text)) && m.Accepting()
		})
		switch {
		case test.Valid:
			t.valid++
			if taken {
				t.taken++
			}
		default:
			t.invalid++
			if taken {
				t.wrong = append(t.wrong, fmt.Sprintf("%s, %s, %s: %s", file, g.Description, test.Description, test.Data))
			}
		}
	}
}

// orders are the ways to write a value with the members of its objects in any
// order, not too many of them.
func orders(raw json.RawMessage) []string {
	const most = 150
	var list []json.RawMessage
	var members map[string]json.RawMessage
	text := strings.TrimSpace(string(raw))
	switch {
	case strings.HasPrefix(text, "[") && json.Unmarshal(raw, &list) == nil:
		out := []string{"["}
		for i, e := range list {
			var next []string
			for _, before := range out {
				for _, o := range orders(e) {
					if len(next) < most {
						next = append(next, before+strings.Repeat(",", min(i, 1))+o)
					}
				}
			}
			out = next
		}
		for i := range out {
			out[i] += "]"
		}
		return out
	case strings.HasPrefix(text, "{") && json.Unmarshal(raw, &members) == nil:
		var out []string
		permute(slices.Sorted(maps.Keys(members)), func(names []string) bool {
			ways := []string{"{"}
			for i, n := range names {
				var next []string
				for _, before := range ways {
					for _, o := range orders(members[n]) {
						if len(next) < most {
							next = append(next, before+strings.Repeat(",", min(i, 1))+string(marshal(n))+":"+o)
						}
					}
				}
				ways = next
			}
			for _, w := range ways {
				out = append(out, w+"}")
			}
			return len(out) < most
		})
		return out
	}
	var v any
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return []string{text}
	}
	return []string{string(marshal(v)), text}
}

// permute calls out with each order until it says false.
func permute(names []string, out func([]string) bool) bool {
	var go1 func(k int) bool
	go1 = func(k int) bool {
		if k == len(names) {
			return out(names)
		}
		for i := k; i < len(names); i++ {
			names[k], names[i] = names[i], names[k]
			more := go1(k + 1)
			names[k], names[i] = names[i], names[k]
			if !more {
				return false
			}
		}
		return true
	}
	return go1(0)
}

func (t *tally) tell(dialect string) error {
	share := float64(t.taken) / float64(max(1, t.valid))
	fmt.Printf("JSON-Schema-Test-Suite %s: %d schemas, %d refused by a sentence; of the others %d invalid instances, %d let through; %d valid ones, %d (%.0f %%) let through\n",
		dialect, t.groups, t.refused, t.invalid, len(t.wrong), t.valid, t.taken, 100*share)
	var why []string
	for _, k := range slices.Sorted(maps.Keys(t.why)) {
		why = append(why, fmt.Sprintf("%s %d", k, t.why[k]))
	}
	fmt.Printf("  refused for: %s\n", strings.Join(why, ", "))
	for _, w := range t.wrong {
		fmt.Printf("  WRONG: %s\n", w)
	}
	if len(t.wrong) > 0 || share < least || t.invalid == 0 {
		return fmt.Errorf("%s: %d invalid instances are let through, and %.0f %% of the valid ones, want none and %.0f %%", dialect, len(t.wrong), 100*share, 100*least)
	}
	return nil
}
