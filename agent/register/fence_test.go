package register

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var leaseKey = types.NamespacedName{Namespace: "n", Name: "mac-studio"}

func leases(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseKey.Namespace, Name: leaseKey.Name}}).Build()
}

func start(t *testing.T, c client.Client, holder string) *lease {
	return &lease{client: c, key: leaseKey, holder: holder, dir: t.TempDir(), log: logr.Discard()}
}

func read(t *testing.T, c client.Client) coordinationv1.Lease {
	t.Helper()
	var l coordinationv1.Lease
	if err := c.Get(t.Context(), leaseKey, &l); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTheSecondOfTwoAgentsWithOneIdentityIsFenced: a disk was cloned. The one that
// began earlier continues.
func TestTheSecondOfTwoAgentsWithOneIdentityIsFenced(t *testing.T) {
	c, now := leases(t), time.Now()
	first, second := start(t, c, "studio/first"), start(t, c, "studio/second")
	shared := 0
	first.shared = func() { shared++ }
	for i, step := range []struct {
		of   *lease
		want error
	}{{first, nil}, {first, nil}, {second, nil}, {first, nil}, {second, ErrFenced}, {first, nil}} {
		if err := step.of.renew(t.Context(), now.Add(time.Duration(i)*time.Second)); !errors.Is(err, step.want) {
			t.Fatalf("step %d: %v, want %v", i, err, step.want)
		}
	}
	if shared != 2 {
		t.Errorf("the first agent noticed %d writes of the second, want the renewal and the report", shared)
	}
	l := read(t, c)
	if got := *l.Spec.HolderIdentity; got != first.holder {
		t.Errorf("%s holds the Lease", got)
	}
	if got := l.Annotations[v1alpha1.AnnotationFenced]; !strings.HasPrefix(got, second.holder+" ") {
		t.Errorf("the Lease reports %q", got)
	}
	if _, err := os.Stat(filepath.Join(second.dir, fenceFile)); err != nil {
		t.Error(err)
	}
}

// TestARestartTakesOverAtOnce: the start before does not renew any more.
func TestARestartTakesOverAtOnce(t *testing.T) {
	c, now := leases(t), time.Now()
	for i, holder := range []string{"studio/a", "studio/b", "studio/c"} {
		l := start(t, c, holder)
		for range 3 {
			now = now.Add(time.Second)
			if err := l.renew(t.Context(), now); err != nil {
				t.Fatalf("start %d: %v", i, err)
			}
		}
		if err := l.await(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestAFencedAgentWaitsForTheOtherToBeSilent, also over a restart.
func TestAFencedAgentWaitsForTheOtherToBeSilent(t *testing.T) {
	c, dir := leases(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fenceFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		first := start(t, c, "studio/first")
		second := &lease{client: c, key: leaseKey, holder: "studio/second", dir: dir, log: logr.Discard()}
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { ended <- second.await(ctx) }()
		for range 60 {
			if err := first.renew(ctx, time.Now()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(renewEvery)
			synctest.Wait()
			select {
			case err := <-ended:
				t.Fatalf("it begins while the other one lives: %v", err)
			default:
			}
		}
		began := time.Now()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < (v1alpha1.MacSilentSeconds-10)*time.Second || d > 2*v1alpha1.MacSilentSeconds*time.Second {
			t.Errorf("it begins %s after the last sign of the other one", d)
		}
	})
	if _, err := os.Stat(filepath.Join(dir, fenceFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record stays: %v", err)
	}
}
