package sandbox

import (
	"strings"
	"testing"
)

func TestProfileAllowsOnlyTheEnginesOwnPaths(t *testing.T) {
	text := profile(Rules{
		Read: []string{`/models/a "quoted" name.gguf`}, Write: []string{"/fast/cache/model-a"}, Socket: "/state/run/e.sock",
	}, "/usr/local/metalfleet/current/engine")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	at := map[string]int{}
	for i, l := range lines {
		if strings.Count(l, "(") != strings.Count(l, ")") && !strings.Contains(l, "regex") {
			t.Errorf("unbalanced: %s", l)
		}
		at[l] = i
	}
	// A later rule decides, so what is allowed again must follow its refusal.
	for _, order := range [][2]string{
		{"(deny process-exec)", `(allow process-exec (literal "/usr/local/metalfleet/current/engine"))`},
		{`(deny file-read* (subpath "/state"))`, `(allow file-read* file-write* (literal "/state/run/e.sock"))`},
		{`(deny file-read* (subpath "/fast/cache"))`, `(allow file-read* file-write* (subpath "/fast/cache/model-a"))`},
		{"(deny file-write*)", `(allow file-read* file-write* (subpath "/fast/cache/model-a"))`},
		{`(deny file-read* (subpath "/Users"))`, `(allow file-read* (subpath "/models/a \"quoted\" name.gguf"))`},
	} {
		before, ok1 := at[order[0]]
		after, ok2 := at[order[1]]
		if !ok1 || !ok2 || before >= after {
			t.Errorf("want %s and, later, %s in\n%s", order[0], order[1], text)
		}
	}
	// A path that is too long for a socket has it elsewhere.
	elsewhere := profile(Rules{Read: []string{"/state/weights/model"}, State: "/state", Socket: "/private/tmp/metalfleet-1/e.sock"}, "/usr/local/metalfleet/current/engine")
	denied, allowed := strings.Index(elsewhere, `(deny file-read* (subpath "/state"))`), strings.Index(elsewhere, `(allow file-read* (subpath "/state/weights/model"))`)
	if denied < 0 || allowed < denied {
		t.Errorf("the agent's folder may be read in\n%s", elsewhere)
	}
	for _, always := range []string{"(deny network-outbound)", "(deny process-fork)"} {
		if _, ok := at[always]; !ok {
			t.Errorf("want %s", always)
		}
	}
}
