// Command chat compares metal/chat/jinja with what jinja2 rendered: see
// compare.py. It prints figures for each group of templates, and each
// difference with its explanation (explained.go), and exits 1 if one has none.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
)

func main() {
	show := flag.Int("show", 20, "unexplained differences to show")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: chat [-show N] RENDERS.jsonl")
		os.Exit(2)
	}
	c := &comparison{show: *show, variables: map[string]*jinja.Dict{}, groups: map[string]*tally{}, explained: map[string]int{}}
	if err := c.run(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// line is one line of compare.py's: variables under a name, a template, or
// what the template before it gives with variables.
type line struct {
	Define    string          `json:"define"`
	Variables json.RawMessage `json:"variables"`

	Group    string `json:"group"`
	Template string `json:"template"`
	Source   string `json:"source"`

	Use  string  `json:"use"`
	Want outcome `json:"want"`
}

type outcome struct {
	Text   *string `json:"text"`
	Raised *string `json:"raised"`
	Error  *string `json:"error"`
}

func (o outcome) String() string {
	switch {
	case o.Text != nil:
		return fmt.Sprintf("text %q", *o.Text)
	case o.Raised != nil:
		return fmt.Sprintf("raised %q", *o.Raised)
	}
	return "error " + *o.Error
}

func (o outcome) equal(p outcome) bool {
	same := func(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	return same(o.Text, p.Text) && same(o.Raised, p.Raised) && (o.Error == nil) == (p.Error == nil)
}

// tally counts the cases of one group.
type tally struct{ templates, cases, equal, failing int }

type comparison struct {
	show      int
	variables map[string]*jinja.Dict
	groups    map[string]*tally
	explained map[string]int
	differ    int

	// The template that is being compared.
	now    line
	parsed *jinja.Template
	broken error
}

func (c *comparison) run(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := c.take(l); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return c.print()
}

func (c *comparison) take(l line) error {
	switch {
	case l.Define != "":
		v, err := jinja.ParseJSON(l.Variables)
		d, ok := v.(*jinja.Dict)
		if err != nil || !ok {
			return fmt.Errorf("variables %q: %w", l.Define, err)
		}
		c.variables[l.Define] = d
	case l.Template != "":
		c.now = l
		c.parsed, c.broken = jinja.Parse(l.Source)
		if c.groups[l.Group] == nil {
			c.groups[l.Group] = new(tally)
		}
		c.groups[l.Group].templates++
	default:
		c.compare(l)
	}
	return nil
}

func (c *comparison) compare(l line) {
	t := c.groups[c.now.Group]
	t.cases++
	got := c.render(c.variables[l.Use])
	switch {
	case got.equal(l.Want):
		t.equal++
		if l.Want.Text == nil {
			t.failing++
		}
		return
	}
	if why := explain(got, l.Want); why != "" {
		c.explained[why]++
		return
	}
	if c.differ++; c.differ <= c.show {
		name := c.now.Template + ", " + l.Use
		if c.now.Group != "real" {
			name = c.now.Source
		}
		fmt.Printf("%s:\n got %v\nwant %v\n", name, got, l.Want)
	}
}

func (c *comparison) render(variables *jinja.Dict) outcome {
	text, err := "", c.broken
	if err == nil {
		text, err = c.parsed.Render(context.Background(), jinja.Input{Variables: variables, Now: time.Date(2026, 3, 9, 7, 5, 2, 0, time.UTC)})
	}
	var e *jinja.Error
	switch {
	case err == nil:
		return outcome{Text: &text}
	case errors.Is(err, jinja.ErrRaised) && errors.As(err, &e):
		return outcome{Raised: &e.Message}
	}
	message := err.Error()
	return outcome{Error: &message}
}

func (c *comparison) print() error {
	for _, name := range sortedKeys(c.groups) {
		t := c.groups[name]
		fmt.Printf("templates %-9s %6d templates, %6d renders, %6d equal (%d of them fail on both sides)\n", name+":", t.templates, t.cases, t.equal, t.failing)
	}
	for _, why := range sortedKeys(c.explained) {
		fmt.Printf("explained %6d: %s\n", c.explained[why], why)
	}
	if len(c.groups) == 0 {
		return errors.New("nothing was compared")
	}
	if c.differ > 0 {
		return fmt.Errorf("%d renders differ without an explanation", c.differ)
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
