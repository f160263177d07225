//go:build !race

package toolcall

import (
	"context"
	"strings"
	"testing"
)

// TestAttackAProbeOfManyBytes: of what a template writes only the first MiB is searched, and
// nothing once the request has ended.
func TestAttackAProbeOfManyBytes(t *testing.T) {
	call := "<tool_call>\n{\"name\": \"probe_function\", \"arguments\": {\"probe_argument\": \"probe value\"}}\n</tool_call>"
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx    context.Context
		before int
		want   Format
	}{
		"within the limit": {ctx: t.Context(), before: maxSearched / 2, want: Hermes},
		"after the limit":  {ctx: t.Context(), before: maxSearched, want: None},
		"ended":            {ctx: ended, want: None},
	} {
		if got := Detect(c.ctx, probeDescription+strings.Repeat(" ", c.before)+call); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
