//go:build !race

package peers

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/report"
)

const greeting = `echo '{"versions":[{"name":"it","version":"1.2"}]}'; `

func speak(t *testing.T, script string) (*Peer, error) {
	t.Helper()
	return start(t.Context(), "sh", "-c", script)
}

func TestAPeerAnswersLineByLine(t *testing.T) {
	p, err := speak(t, greeting+`
while read -r line; do
  case $line in
    '1 64 2') echo '{"prefillSeconds":2,"stepSeconds":0.5}' ;;
    '1 512 0') echo '{"prefillSeconds":4,"stepSeconds":0}' ;;
    '8 64 2') echo '{"prefillSeconds":0,"stepSeconds":1}' ;;
    *) echo "asked $line" >&2; exit 1 ;;
  esac
done`)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Versions, []report.Version{{Name: "it", Version: "1.2"}}) {
		t.Errorf("greeting %+v", p)
	}
	for want, ask := range map[Times][3]int{{Prefill: 2, Step: 0.5}: {1, 64, 2}, {Prefill: 4}: {1, 512, 0}, {Step: 1}: {8, 64, 2}} {
		if got, err := p.Measure(ask[0], ask[1], ask[2]); err != nil || got != want {
			t.Errorf("%v: %+v, %v", ask, got, err)
		}
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
}

func TestAPeerThatFailsIsAnErrorWithItsLog(t *testing.T) {
	for name, script := range map[string]string{
		"does not start":     `echo no such module >&2; exit 1`,
		"prints no JSON":     `echo loading no such module`,
		"ends without error": `echo no such module`,
	} {
		if _, err := speak(t, script); err == nil || !strings.Contains(err.Error(), "no such module") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Launch(t.Context(), "no-such-program"); err == nil {
		t.Error("a missing program was started")
	}
	for name, answer := range map[string]string{
		"it ends":           `echo out of memory >&2; exit 1`,
		"it prints no JSON": `echo out of memory`,
		"no step":           `echo '{"prefillSeconds":2,"stepSeconds":0}'`,
		"no prefill":        `echo '{"prefillSeconds":0,"stepSeconds":1}'`,
	} {
		p, err := speak(t, greeting+"read -r line; "+answer)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Measure(1, 64, 1); err == nil || strings.Contains(answer, "memory") && !strings.Contains(err.Error(), "out of memory") {
			t.Errorf("%s: %v", name, err)
		}
		_ = p.Stop() // it may have failed
	}
}

func TestOnlyKnownPeersAreInstalled(t *testing.T) {
	out, err := exec.Command("bash", "install.sh", "another").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "usage: ") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, n := range []Name{LlamaCPP, MLXLM} {
		if _, err := os.Stat(n.driver()); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
	if _, err := os.Stat(filepath.Join("..", "..", "..", folder, "install.sh")); err != nil {
		t.Error(err)
	}
}
