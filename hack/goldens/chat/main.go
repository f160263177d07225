// Command chat compares metal/chat/jinja with what jinja2 rendered: see
// compare.py. It prints a line for each template and exits 1 if anything
// differs.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
)

func main() {
	show := flag.Int("show", 3, "differences to show for each template")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: chat [-show N] RENDERS.jsonl")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *show); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type line struct {
	Template  string          `json:"template"`
	Source    string          `json:"source"`
	Case      string          `json:"case"`
	Variables json.RawMessage `json:"variables"`
	Want      outcome         `json:"want"`
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

// tally counts the cases of one template.
type tally struct {
	name         string
	cases, equal int
}

func (t tally) print() {
	if t.name != "" {
		fmt.Printf("%4d of %4d equal  %s\n", t.equal, t.cases, t.name)
	}
}

func run(path string, show int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 64<<20)
	var now, total tally
	var source string
	whole := 0
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if l.Template != "" {
			now.print()
			now, source = tally{name: l.Template}, l.Source
			continue
		}
		got := render(source, l.Variables)
		now.cases, total.cases = now.cases+1, total.cases+1
		if got.equal(l.Want) {
			now.equal, total.equal = now.equal+1, total.equal+1
			continue
		}
		if whole++; now.cases-now.equal <= show {
			fmt.Printf("%s, %s:\n got %v\nwant %v\n", now.name, l.Case, got, l.Want)
		}
	}
	now.print()
	if err := in.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	total.name = "in all"
	total.print()
	if total.equal != total.cases || total.cases == 0 {
		return errors.New("renders differ")
	}
	return nil
}

func render(source string, variables json.RawMessage) outcome {
	text, err := renderText(source, variables)
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

func renderText(source string, variables json.RawMessage) (string, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return "", err
	}
	v, err := jinja.ParseJSON(variables)
	if err != nil {
		return "", err
	}
	vars, ok := v.(*jinja.Dict)
	if !ok {
		return "", errors.New("variables are not an object")
	}
	return t.Render(context.Background(), jinja.Input{Variables: vars, Now: time.Date(2026, 3, 9, 7, 5, 2, 0, time.UTC)})
}
