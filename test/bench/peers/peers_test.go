package peers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const hello = `echo '{"versions":[{"name":"it","version":"1.2"}]}'`

// speak starts a stand-in for a peer, a shell script.
func speak(t *testing.T, script string) (*Peer, error) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	path := filepath.Join(t.TempDir(), "peer.sh")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t.Context(), "it", "sh", path)
}

func nothingLeft(t *testing.T) {
	t.Helper()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAPeerIsAskedOneThingAtATime(t *testing.T) {
	p, err := speak(t, hello+`
while read -r ask; do
  case $ask in
    '{"streams":8,"prompt":64,"tokens":5}') echo '{"prefillSeconds":2,"stepSeconds":[9,9,9,0.25,0.5]}' ;;
    '{"streams":1,"prompt":512,"tokens":0}') echo '{"prefillSeconds":4,"stepSeconds":[]}' ;;
    *) echo "asked $ask" >&2; exit 1 ;;
  esac
done`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Version{{"it", "1.2"}}, p.Versions); diff != "" {
		t.Error(diff)
	}
	f, err := p.Measure(8, 64, 2)
	if err != nil || f.PrefillRate(64) != 32 || f.DecodeRate() != 2 {
		t.Errorf("%+v, %v: the steps that warm up are not counted", f, err)
	}
	if f, err = p.Measure(1, 512, 0); err != nil || f.PrefillRate(512) != 128 {
		t.Errorf("%+v, %v", f, err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	nothingLeft(t)
}

func TestAPeerThatFailsIsAnErrorWithItsLastWords(t *testing.T) {
	for says, script := range map[string]string{
		"it does not start":     `echo no module named so >&2; exit 1`,
		"it prints rubbish":     `echo loading no module named so`,
		"it says nothing, ends": `echo no module named so >&2`,
	} {
		if _, err := speak(t, script); err == nil || !strings.Contains(err.Error(), "no module named so") {
			t.Errorf("%s: %v", says, err)
		}
		nothingLeft(t)
	}
	for says, answer := range map[string]string{
		"it goes away":             `echo out of memory >&2; exit 1`,
		"it answers rubbish":       `echo out of memory`,
		"it forgets a step":        `echo '{"prefillSeconds":2,"stepSeconds":[1,1,1]}'`,
		"its prefill took no time": `echo '{"prefillSeconds":0,"stepSeconds":[1,1,1,1]}'`,
	} {
		p, err := speak(t, hello+"; read -r ask; "+answer)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Measure(1, 64, 1); err == nil || !strings.Contains(err.Error(), "it") {
			t.Errorf("%s: %v", says, err)
		}
		_ = p.Stop() // it may have ended badly
		nothingLeft(t)
	}
}

func TestOnlyKnownPeersAreInstalled(t *testing.T) {
	var said strings.Builder
	_, err := Install(t.Context(), filepath.Join("..", "..", ".."), "another", &said)
	if err == nil || !strings.Contains(err.Error(), "another") || !strings.Contains(said.String(), "usage: ") {
		t.Errorf("%v\n%s", err, said.String())
	}
}

func TestEveryPeerHasItsProgram(t *testing.T) {
	for _, n := range []Name{LlamaCPP, MLXLM} {
		if _, err := os.Stat(n.program()); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
}
