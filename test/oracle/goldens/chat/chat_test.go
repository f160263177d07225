//go:build oracle

package chat

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
)

var (
	renders = flag.String("renders", "", "file that compare.py wrote")
	show    = flag.Int("show", 20, "unexplained differences to show")
)

func TestTemplatesRenderAsJinja2RendersThem(t *testing.T) {
	if *renders == "" {
		t.Fatal("flag -renders is missing: make test-oracle SUITE=text runs compare.py first and passes it")
	}
	c := &comparison{show: *show, variables: map[string]*jinja.Dict{}, groups: map[string]*tally{}, explained: map[string]int{}}
	if err := c.run(*renders); err != nil {
		t.Fatal(err)
	}
}

// line is one line of compare.py's: variables under a name, a template, what
// the template before it gives with variables, or what a folder's template
// gives.
type line struct {
	Define    string          `json:"define"`
	Variables json.RawMessage `json:"variables"`

	Group    string `json:"group"`
	Template string `json:"template"`
	Source   string `json:"source"`

	Use  string  `json:"use"`
	Want outcome `json:"want"`

	Folder    string                     `json:"folder"`
	Case      string                     `json:"case"`
	Messages  json.RawMessage            `json:"messages"`
	Arguments map[string]json.RawMessage `json:"arguments"`
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
	case l.Folder != "":
		if c.now.Folder != l.Folder {
			c.group(l).templates++
		}
		c.now = l
		c.compare(l.Case, renderFolder(l), l.Want)
	case l.Template != "":
		c.now = l
		c.parsed, c.broken = jinja.Parse(l.Source)
		c.group(l).templates++
	default:
		name := c.now.Template + ", " + l.Use
		if c.now.Group != "real" {
			name = c.now.Source
		}
		c.compare(name, c.render(c.variables[l.Use]), l.Want)
	}
	return nil
}

func (c *comparison) group(l line) *tally {
	if c.groups[l.Group] == nil {
		c.groups[l.Group] = new(tally)
	}
	return c.groups[l.Group]
}

func (c *comparison) compare(name string, got, want outcome) {
	t := c.group(c.now)
	t.cases++
	switch {
	case got.equal(want):
		t.equal++
		if want.Text == nil {
			t.failing++
		}
		return
	}
	if why := explain(got, want); why != "" {
		c.explained[why]++
		return
	}
	if c.differ++; c.differ <= c.show {
		fmt.Printf("%s:\n got %v\nwant %v\n", name, got, want)
	}
}

func (c *comparison) render(variables *jinja.Dict) outcome {
	text, err := "", c.broken
	if err == nil {
		text, err = c.parsed.Render(context.Background(), jinja.Input{Variables: variables, Now: now()})
	}
	var e *jinja.Error
	if errors.Is(err, jinja.ErrRaised) && errors.As(err, &e) {
		return outcome{Raised: &e.Message}
	}
	return outcomeOf(text, err)
}

// now is the time at which the reference's clock stands.
func now() time.Time { return time.Date(2026, 3, 9, 7, 5, 2, 0, time.UTC) }

func outcomeOf(text string, err error) outcome {
	if err == nil {
		return outcome{Text: &text}
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
