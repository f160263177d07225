//go:build !race

package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

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

// golden is what test/oracle/goldens/chat/generate.py wrote.
type golden struct {
	Variables json.RawMessage `json:"variables"`
	Snippets  []struct {
		Template string  `json:"template"`
		Want     outcome `json:"want"`
	} `json:"snippets"`
	Styles        map[string]string `json:"styles"`
	Conversations []struct {
		Name      string             `json:"name"`
		Variables json.RawMessage    `json:"variables"`
		Want      map[string]outcome `json:"want"`
	} `json:"conversations"`
}

func readGolden(t testing.TB) *golden {
	t.Helper()
	raw, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	g := new(golden)
	if err := json.Unmarshal(raw, g); err != nil {
		t.Fatal(err)
	}
	if len(g.Snippets) < 2000 || len(g.Conversations) < 100 || len(g.Styles) < 4 {
		t.Fatalf("golden file holds %d snippets, %d conversations, %d styles", len(g.Snippets), len(g.Conversations), len(g.Styles))
	}
	return g
}

func variables(t testing.TB, raw []byte) *Dict {
	t.Helper()
	v, err := ParseJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	return v.(*Dict)
}

func render(source string, vars *Dict, limits Limits) outcome {
	text, err := renderText(context.Background(), source, vars, limits)
	var e *Error
	switch {
	case err == nil:
		return outcome{Text: &text}
	case errors.Is(err, ErrRaised) && errors.As(err, &e):
		return outcome{Raised: &e.Message}
	}
	message := err.Error()
	return outcome{Error: &message}
}

func renderText(ctx context.Context, source string, vars *Dict, limits Limits) (string, error) {
	tmpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	return tmpl.Render(ctx, Input{Variables: vars, Now: time.Date(2026, 3, 9, 7, 5, 2, 0, time.UTC), Limits: limits})
}

func TestSnippetsRenderAsJinja2Does(t *testing.T) {
	g := readGolden(t)
	vars := variables(t, g.Variables)
	for _, s := range g.Snippets {
		got := render(s.Template, vars, Limits{})
		if !got.equal(s.Want) {
			t.Errorf("%s\n got %v\nwant %v", s.Template, got, s.Want)
		}
	}
}

func TestConversationsRenderAsJinja2Does(t *testing.T) {
	g := readGolden(t)
	for name, source := range g.Styles {
		t.Run(name, func(t *testing.T) {
			for _, c := range g.Conversations {
				want, ok := c.Want[name]
				if !ok {
					t.Fatalf("no golden text for %s", c.Name)
				}
				if got := render(source, variables(t, c.Variables), Limits{}); !got.equal(want) {
					t.Errorf("%s\n got %v\nwant %v", c.Name, got, want)
				}
			}
		})
	}
}

// Filters that lay out pages are refused when a template is read, by name.
func TestFiltersThatNoChatTemplateUsesAreRefused(t *testing.T) {
	for _, name := range []string{"batch", "center", "filesizeformat", "forceescape", "groupby", "pprint", "random", "slice", "striptags", "truncate",
		"urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"} {
		if _, err := Parse("{{ 'a' | " + name + " }}"); err == nil || !strings.Contains(err.Error(), `the filter "`+name+`"`) {
			t.Errorf("%s: %v, want the filter refused by its name", name, err)
		}
	}
}
