package lines

import (
	"strings"
	"testing"
)

func TestAProgramIsAskedLineByLine(t *testing.T) {
	p, err := Start(t.Context(), "sh", "-c", `echo '{"n":0}'; while read a b; do echo "{\"n\":$b}"; done`)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ N int }
	if err := p.Answer(&got); err != nil || got.N != 0 {
		t.Errorf("first it said %d, %v", got.N, err)
	}
	for _, line := range []string{"1 7", "2 8"} {
		if err := p.Ask(line, &got); err != nil || got.N != int(line[2]-'0') {
			t.Errorf("to %q it said %d, %v", line, got.N, err)
		}
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopped again: %v", err)
	}
}

func TestAProgramThatGoesAwaySaysWhy(t *testing.T) {
	for script, says := range map[string]string{
		"read a; echo no room >&2; exit 3": "no room",
		"read a; echo nothing":             "nothing",
	} {
		p, err := Start(t.Context(), "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Ask("1", new(int)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want %q in it", script, err, says)
		}
	}
	if _, err := Start(t.Context(), "no-such-program"); err == nil {
		t.Error("a program that does not exist was started")
	}
}
