package agentapi

import (
	"strings"
	"testing"
)

func TestRequestIDKeepsWhatIsFitForLogs(t *testing.T) {
	for _, fit := range []string{"a", "req-1", "7f3c:/a_b.C", strings.Repeat("x", 128)} {
		if got := RequestID(fit); got != fit {
			t.Errorf("RequestID(%q) = %q", fit, got)
		}
	}
	seen := map[string]bool{}
	for _, bad := range []string{"", "a b", "a\nb", "\"", "é", strings.Repeat("x", 129)} {
		got := RequestID(bad)
		if got == bad || !strings.HasPrefix(got, "req-") || seen[got] {
			t.Errorf("RequestID(%q) = %q", bad, got)
		}
		seen[got] = true
	}
}
