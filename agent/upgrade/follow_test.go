package upgrade

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
)

// follower is an upgrader of version v1 with a server that has v2.
type follower struct {
	t       *testing.T
	u       *Upgrader
	url     string
	digest  string
	drained chan time.Duration
	// failures is how many requests its server fails first.
	failures atomic.Int64
	// signature of the archive, as the server has it.
	signature atomic.Pointer[[]byte]
}

func newFollower(t *testing.T, change func(*Config)) *follower {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"agent v2\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "agent"), source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	packed := archive(t, entry{name: "agent", kind: tar.TypeReg, body: string(program)}, entry{name: "engine", kind: tar.TypeReg, body: string(program)}).Bytes()
	sum := sha256.Sum256(packed)
	f := &follower{t: t, digest: hex.EncodeToString(sum[:]), drained: make(chan time.Duration, 1)}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.failures.Add(-1) >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/a.tar.gz.sig" {
			if s := f.signature.Load(); s != nil {
				_, _ = w.Write(*s)
			}
			return
		}
		if r.URL.Path == "/stalls" {
			<-r.Context().Done()
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(packed)))
	}))
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	f.url = s.URL
	c := Config{
		Log: testr.New(t), Folder: In(t.TempDir()), Version: "v1", Changed: func() {}, Drain: func(d time.Duration) { f.drained <- d },
		Client: download.NewClient(download.Policy{Roots: roots, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}),
	}
	if change != nil {
		change(&c)
	}
	if f.u, err = New(c); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.u.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return f
}

func (f *follower) order(change func(*v1alpha1.AgentOrder)) {
	seconds := int32(30)
	o := &v1alpha1.AgentOrder{Version: "v2", Source: f.url + "/a.tar.gz", SHA256: f.digest, Attempt: 1, DrainSeconds: &seconds}
	if change != nil {
		change(o)
	}
	f.u.Set(o)
}

func (f *follower) waitPhase(want v1alpha1.AgentUpgradePhase, says string) {
	f.t.Helper()
	var got *v1alpha1.AgentUpgrade
	for deadline := time.Now().Add(patience.Of(f.t)); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = f.u.Status(); got != nil && got.Phase == want && strings.Contains(got.Message, says) {
			return
		}
	}
	f.t.Fatalf("%+v, want %s and %q", got, want, says)
}

func TestAGoodArchiveIsReadyAndTheAgentDrained(t *testing.T) {
	f := newFollower(t, nil)
	f.order(nil)
	f.waitPhase(v1alpha1.UpgradeDraining, "")
	select {
	case most := <-f.drained:
		if most != 30*time.Second {
			t.Errorf("requests have %s, ordered were 30s", most)
		}
	case <-time.After(patience.Of(t)):
		t.Fatal("nothing is drained")
	}
	if !f.u.Ready() {
		t.Error("nothing is ready")
	}
	if s := load(t, f.u.Folder); s.Trial != nil || s.Base != "" {
		t.Errorf("a trial is written down before requests ended: %+v", s)
	}
}

func TestWhatIsNotAsOrderedStopsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		config func(*Config)
		order  func(*v1alpha1.AgentOrder)
		says   string
	}{
		"another digest":        {config: nil, order: func(o *v1alpha1.AgentOrder) { o.SHA256 = strings.Repeat("0", 64) }, says: "does not have the SHA-256"},
		"another version":       {config: nil, order: func(o *v1alpha1.AgentOrder) { o.Version = "v3" }, says: `"agent v2", want "agent v3"`},
		"a Mac that wants none": {config: func(c *Config) { c.Forbidden = true }, order: nil, says: "--upgrades=false"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollower(t, tc.config)
			f.order(tc.order)
			f.waitPhase(v1alpha1.UpgradeRefused, tc.says)
			if f.u.Ready() || len(f.drained) != 0 {
				t.Error("the agent is drained for it")
			}
			again, err := New(f.u.Config) // as after a restart
			if err != nil || !again.Status().Failed() {
				t.Errorf("a restart forgets it: %+v, %v", again.Status(), err)
			}
		})
	}
}

// A refusal halts the upgrade of the whole class until a person continues it.
func TestAServerThatFailsForAMomentIsAskedAgain(t *testing.T) {
	f := newFollower(t, func(c *Config) { c.Pause = time.Millisecond })
	f.failures.Store(3)
	f.order(nil)
	f.waitPhase(v1alpha1.UpgradeDraining, "")
}

// An agent that had drained for it would end in vain, be started again, and drain again.
func TestNothingIsDrainedForATrialThatCannotBeRecorded(t *testing.T) {
	f := newFollower(t, nil)
	if err := os.MkdirAll(filepath.Join(f.u.Folder.dir, "state.json.new"), 0o700); err != nil { // no write succeeds, as on a full disk
		t.Fatal(err)
	}
	f.order(nil)
	f.waitPhase(v1alpha1.UpgradeRefused, "write state of upgrades")
	if f.u.Ready() || len(f.drained) != 0 {
		t.Error("requests are drained")
	}
}

func TestAnotherOrderEndsADownload(t *testing.T) {
	f := newFollower(t, nil)
	f.order(func(o *v1alpha1.AgentOrder) { o.Source = f.url + "/stalls" })
	f.waitPhase(v1alpha1.UpgradeFetching, "")
	f.order(func(o *v1alpha1.AgentOrder) { o.Attempt = 2 })
	f.waitPhase(v1alpha1.UpgradeDraining, "")
	if got := f.u.Status(); got.Attempt != 2 {
		t.Errorf("%+v", got)
	}
}
