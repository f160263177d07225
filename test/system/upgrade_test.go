//go:build stories

package system

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	upgradeStreams = 20
	// goodVersion is the build that works. None of the versions is a number, so that
	// they are not compared with the operator's; orders allow a downgrade, because
	// they cannot be compared with the agent's either.
	goodVersion = "test-good"
)

// TestUpgrade replaces the agents of two Macs under twenty streams, one Mac after
// the other, and then by two builds that do not work. No stream fails or is cut, at
// most one Mac at a time is away, engines are the same processes before and after,
// and what does not work is rolled back and reported.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	takeTurn(t)
	u := &upgrade{releases: t.TempDir(), digests: map[string]string{}}
	u.build(t, goodVersion, "./cmd/agent", "")
	u.build(t, "test-exits", "./test/system/broken", "exit")
	u.build(t, "test-hangs", "./test/system/broken", "hang")
	u.server = httptest.NewTLSServer(http.FileServer(http.Dir(u.releases)))
	t.Cleanup(u.server.Close)
	u.world = start(t, fleet.Options{Macs: []fleet.Mac{{Name: "macbook", Chip: "M4Max", Memory: "64Gi"}, {Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}}}, models())
	md := u.deploy(t, fleet.Model{Name: "story", File: "slow.gguf", MaxTokens: slowContext, MaxConcurrentRequests: upgradeStreams, KVCacheTokens: slowContext * upgradeStreams, DrainSeconds: 60}, replicas(2))
	u.waitReady(t, md, 2)
	sequence(t,
		step{name: "a build that works", do: func(t *testing.T) { u.underLoad(t, u.good) }},
		step{name: "a build that exits", do: func(t *testing.T) {
			u.underLoad(t, func(t *testing.T) { u.bad(t, "test-exits", "exit code 1") })
		}},
		step{name: "a build that hangs", do: func(t *testing.T) {
			u.underLoad(t, func(t *testing.T) { u.bad(t, "test-hangs", "not ready within") })
		}})
}

type upgrade struct {
	*world
	releases string // folder of archives
	digests  map[string]string
	server   *httptest.Server
	attempt  int64
}

// build makes a release of the agent.
func (u *upgrade) build(t *testing.T, version, pkg, mode string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-X main.version="+version+" -X main.mode="+mode, "-o", program, pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", version, err, out)
	}
	digest, err := fleet.Pack(filepath.Join(u.releases, version+".tar.gz"), map[string]string{"agent": program, "engine": absolute(t, "bin", "engine")})
	must(t, err)
	u.digests[version] = digest
}

// order writes what kubectl metalfleet upgrade-agents writes.
func (u *upgrade) order(t *testing.T, version string) {
	t.Helper()
	u.attempt++
	class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultMacClass}}
	if err := u.Client.Get(t.Context(), client.ObjectKeyFromObject(class), class); !apierrors.IsNotFound(err) {
		must(t, err)
	}
	class.Spec.Release = &v1alpha1.AgentRelease{Version: version, Source: u.server.URL + "/" + version + ".tar.gz", SHA256: u.digests[version], RetryGeneration: u.attempt,
		DrainSeconds: ptr.To[int32](120), Downgrade: v1alpha1.DowngradeAllow}
	if class.UID == "" {
		must(t, u.Client.Create(t.Context(), class))
		return
	}
	must(t, u.Client.Update(t.Context(), class))
}

// underLoad wants an upgrade to leave every stream whole, and engines to be the
// same processes before and after.
func (u *upgrade) underLoad(t *testing.T, upgrade func(*testing.T)) {
	engines := u.engines(t)
	clients := make([]fleet.Question, upgradeStreams)
	for n := range clients {
		clients[n] = fleet.Question{Model: "story", Stream: true, MaxTokens: 400} // some seconds: many span the upgrade
	}
	load := u.StartLoad(t.Context(), fleet.LoadOptions{Clients: clients, Limit: 2 * patience})
	t.Cleanup(func() { load.End() })
	began := time.Now()
	upgrade(t)
	t.Logf("the upgrade took %.0f s", time.Since(began).Seconds())
	wantWhole(t, load)
	if now := u.engines(t); now != engines {
		t.Errorf("engines are the processes %s, before they were %s", now, engines)
	}
}

// engines are the processes of both Macs.
func (u *upgrade) engines(t *testing.T) string {
	t.Helper()
	a, b := u.pids(t, "macbook"), u.pids(t, "studio")
	if len(a) != 1 || len(b) != 1 {
		t.Fatalf("engines %v and %v, want one on each Mac", a, b)
	}
	return fmt.Sprint(a, b)
}

// good upgrades both Macs.
func (u *upgrade) good(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	both := make(chan int, 1)
	go func() { both <- u.bothAway(ctx) }()
	u.order(t, goodVersion)
	for _, name := range []string{"macbook", "studio"} {
		u.waitLong(t, name, name+" runs "+goodVersion, func(m *v1alpha1.MacNode) error {
			if a := m.Status.AgentUpgrade; m.Status.AgentVersion != goodVersion || a == nil || a.Phase != v1alpha1.UpgradeSucceeded ||
				!meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionAccepting) ||
				!meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionAgentCurrent) {
				return fmt.Errorf("it runs %s, upgrade %+v", m.Status.AgentVersion, a)
			}
			return nil
		})
	}
	stop()
	if n := <-both; n > 0 {
		t.Errorf("both Macs were away at once, seen %d times", n)
	}
}

// waitLong waits for an upgrade, which waits for streams and for what hangs.
func (u *upgrade) waitLong(t *testing.T, mac, what string, ask func(*v1alpha1.MacNode) error) {
	t.Helper()
	must(t, u.WaitMac(t.Context(), mac, what, 2*patience, ask))
}

// bothAway counts how often both Macs are away, until ctx ends.
func (u *upgrade) bothAway(ctx context.Context) (n int) {
	_ = fleet.Poll(ctx, 20*time.Millisecond, "the upgrade ends", func(ctx context.Context) error {
		away := 0
		for _, name := range []string{"macbook", "studio"} {
			if m, err := u.Mac(ctx, name); err == nil && meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAccepting) {
				away++
			}
		}
		if away == 2 {
			n++
		}
		return errNotYet
	})
	return n
}

// bad orders a build that does not work, and wants it rolled back on the first Mac
// and never ordered for the second.
func (u *upgrade) bad(t *testing.T, version, reason string) {
	u.order(t, version)
	u.waitLong(t, "macbook", "it is rolled back to "+goodVersion, func(m *v1alpha1.MacNode) error {
		a, c := m.Status.AgentUpgrade, meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentCurrent)
		if a == nil || a.To != version || a.Phase != v1alpha1.UpgradeRolledBack || !strings.Contains(a.Message, reason) || m.Status.AgentVersion != goodVersion ||
			!meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionAccepting) || c == nil || c.Reason != v1alpha1.ReasonAgentRolledBack {
			return fmt.Errorf("runs %s, upgrade %+v, condition %+v", m.Status.AgentVersion, a, c)
		}
		return nil
	})
	var studio v1alpha1.MacAssignment
	must(t, u.Client.Get(t.Context(), client.ObjectKey{Name: "studio"}, &studio))
	if a := studio.Spec.Agent; a == nil || a.Version != goodVersion {
		t.Errorf("studio was ordered %+v although %s failed before", a, version)
	}
	u.wantEvent(t, "MacNode", "macbook", v1alpha1.ReasonAgentRolledBack, version)
}
