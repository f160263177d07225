//go:build stories

package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
)

var (
	chaosFor = flag.Duration("chaos", 0, "how long TestChaos begins new faults, in the order of -seed; 0: every fault once, in a fixed order")
	seed     = flag.Uint64("seed", 1, "order of the faults of TestChaos")
	cycles   = flag.Int("cycles", 10, "cycles of memory pressure of TestCycles")
)

// TestMain stops the fleet that stories share.
func TestMain(m *testing.M) {
	enterSandbox()
	flag.Parse()
	// Stories wait most of their time, and each has Macs of its own: three at once keep
	// two processors busy. With all of them at once the API server answers too late.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	code := m.Run()
	if w := shared.world; w != nil {
		logs := ""
		if code != 0 {
			logs = "stories-failed"
		}
		if err := w.close(logs); err != nil {
			fmt.Fprintln(os.Stderr, "the fleet that stories share:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// turns has a place for each story that computes all the time: two at once on the
// two processors of a small machine, next to those that wait.
var turns = make(chan struct{}, 2)

// takeTurn waits for a place, which is free again at the end of the test.
func takeTurn(t *testing.T) {
	t.Helper()
	turns <- struct{}{}
	t.Cleanup(func() { <-turns })
}

// shared is the fleet of the stories that leave its control plane alone. It starts
// without a Mac: each story adds its own.
var shared struct {
	once  sync.Once
	world *world
	err   error
}

// together makes the test parallel and returns the shared fleet with Macs of the
// story.
func together(t *testing.T, macs ...fleet.Mac) *world {
	t.Helper()
	t.Parallel()
	shared.once.Do(func() {
		ctx := context.WithoutCancel(t.Context()) // it outlives the first story
		options := fleet.Options{GatewayFlags: map[string][]string{keyed: {"--api-keys-namespace=" + keysNamespace}}}
		shared.world, shared.err = open(ctx, options, storyModels())
	})
	must(t, shared.err)
	w := shared.world
	for _, m := range macs {
		must(t, w.Add(t.Context(), w.trusting(m)))
	}
	return w
}

// Contexts of the further models of stories.
const (
	// nimbleContext makes an answer of full length larger than what sockets buffer.
	nimbleContext = 32768
	// longContext is that of long.gguf, whose tokens take no time.
	longContext = 2048
)

func storyModels() map[string]tinymodel.Config {
	all := models()
	nimble, long, spoilt := tinymodel.Default(), tinymodel.Default(), tinymodel.Default()
	nimble.Name, nimble.Seed, nimble.Context, nimble.Endless = "nimble", 6, nimbleContext, true
	long.Name, long.Context, long.Endless = "long", longContext, true
	spoilt.NormSpread = math.NaN() // it loads, and every score is not a number
	for name, c := range map[string]tinymodel.Config{
		"nimble.gguf": nimble, "long.gguf": long, "spoilt.gguf": spoilt, "heavier.gguf": tinymodel.Large(2 * heavyBytes),
		leakyWord + ".gguf": slow(5), doomedWord + ".gguf": slow(5),
	} {
		all[name] = c
	}
	return all
}

// sequence runs steps of a story as subtests, to the first that fails.
func sequence(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		if !t.Run(s.name, s.do) {
			t.FailNow()
		}
	}
}

// step is a part of a story that begins where the one before ended.
type step struct {
	name string
	do   func(*testing.T)
}

// model deploys one, and deletes it at the end of the test.
func (w *world) model(t *testing.T, m fleet.Model) {
	t.Helper()
	must(t, w.Deploy(t.Context(), m))
	t.Cleanup(func() {
		if err := w.Undeploy(context.WithoutCancel(t.Context()), m.Name); err != nil {
			t.Error(err)
		}
	})
}

// rouse loads a model by a request.
func (w *world) rouse(t *testing.T, name string) fleet.Resident {
	t.Helper()
	r, err := w.Rouse(t.Context(), name, patience)
	must(t, err)
	return r
}

// waitEmpty waits until a Mac has no engine and no reservation.
func (w *world) waitEmpty(t *testing.T, mac string) {
	t.Helper()
	eventually(t, "Mac "+mac+" is empty", func(ctx context.Context) error { return w.CheckEmpty(ctx, mac) })
}

// waitMac waits until a MacNode is as wanted.
func (w *world) waitMac(t *testing.T, mac, what string, ask func(*v1alpha1.MacNode) error) {
	t.Helper()
	must(t, w.WaitMac(t.Context(), mac, what, patience, ask))
}

// label lets replicas of a story onto a Mac.
func (w *world) label(t *testing.T, mac, story string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, fleet.LabelRoom, story)
	must(t, w.Client.Patch(t.Context(), w.node(t, mac), client.RawPatch(types.MergePatchType, []byte(patch))))
}

// edit changes the spec of a deployment.
func (w *world) edit(t *testing.T, md *v1alpha1.ModelDeployment, change func(*v1alpha1.ModelDeploymentSpec)) {
	t.Helper()
	now, err := w.read(t.Context(), md)
	must(t, err)
	before := now.DeepCopy()
	change(&now.Spec)
	must(t, w.Client.Patch(t.Context(), now, client.MergeFrom(before)))
}

// wantWhole ends a load and wants every answer whole.
func wantWhole(t *testing.T, load *fleet.Load) {
	t.Helper()
	requests := load.End()
	t.Log(fleet.Summary(requests))
	if err := fleet.WantWhole(requests); err != nil {
		t.Error(err)
	}
}

// scratchFolder is a folder with a short path.
func scratchFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mf-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// absolute is a path in the module.
func absolute(t *testing.T, parts ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{root}, parts...)...))
	must(t, err)
	return path
}

// lasts waits for d.
func lasts(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

var errNotYet = errors.New("not yet")
