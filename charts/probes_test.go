package charts

import (
	"os"
	"strings"
	"testing"
)

// TestProbesWaitForAConnectionThatIsTriedAgain: a SYN that a flood displaces is sent again after 1 s,
// the time limit that probes have by default.
func TestProbesWaitForAConnectionThatIsTriedAgain(t *testing.T) {
	for _, file := range []string{"metalfleet/templates/gateway.yaml", "metalfleet/templates/operator.yaml", "../config/deploy/gateway.yaml", "../config/deploy/operator.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		probes := strings.Split(string(text), "nessProbe:\n")[1:]
		for _, probe := range probes {
			if action, limit, _ := strings.Cut(probe, "\n"); !strings.HasPrefix(strings.TrimSpace(limit), "timeoutSeconds: 5\n") {
				t.Errorf("%s: a probe has the default time limit: %s", file, strings.TrimSpace(action))
			}
		}
		if len(probes) != 2 {
			t.Errorf("%s: %d probes, want 2", file, len(probes))
		}
	}
}
