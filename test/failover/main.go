// Command failover is the test behind make test-failover: two answers stream
// through the gateway from two Macs, requests wait behind them, and one Mac
// dies. The client is the official Python one, which never retries.
//
// It owns the killing and the verdict: the stream of the dead Mac ends with a
// typed error, the other one and every request that had not begun are answered
// whole. Before that, the client has to take what the gateway says of API keys
// for what it is. Processes belong to package fleet, the client is client.py and
// refusals.py, and run.sh, which starts this program last, fetches both.
//
// Start reading at test, judge and refusals.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	deployment = "smollm2"
	source     = "file://smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
	// patience bounds each wait; three times what a busy two-core machine took.
	patience = 3 * time.Minute
)

func main() {
	root := flag.String("root", ".", "folder of the module")
	python := flag.String("python", "", "Python with the official client")
	flag.Parse()
	if flag.NArg() > 0 || *python == "" {
		fmt.Fprintln(os.Stderr, "usage: failover -python PYTHON [-root DIR]; make test-failover")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *python); err != nil {
		fmt.Fprintln(os.Stderr, "test-failover:", err)
		os.Exit(1)
	}
}

// run brings a fleet up, tests it, and takes everything back.
func run(ctx context.Context, root, python string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	free, err := lock(filepath.Join(root, ".run", "failover.lock"))
	if err != nil {
		return err
	}
	defer free()
	dir := filepath.Join(root, ".run", "failover")
	hurry, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err := fleet.Remove(hurry, dir); err != nil { // what a killed run left
		return err
	}
	f, err := fleet.Start(ctx, fleet.Options{
		Root: root, Dir: dir, ModelRoot: filepath.Join(root, ".cache", "models"),
		Macs:          []fleet.Mac{{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}, {Name: "macbook", Chip: "M4Max", Memory: "64Gi"}},
		KeysNamespace: keysNamespace,
		Say:           func(step string) { fmt.Println("  ", step) },
	})
	if err != nil {
		return err
	}
	err = test(ctx, f, root, python)
	if err != nil && ctx.Err() == nil {
		logs := filepath.Join(root, ".run", "failover-failed")
		err = errors.Join(err, f.KeepLogs(logs), fmt.Errorf("the logs are in %s", logs))
	}
	return errors.Join(err, f.Stop(hurry))
}

// lock makes this the only run of the checkout.
func lock(path string) (free func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another test-failover runs in this checkout (lock on %s): %w", path, err), f.Close())
	}
	return func() {
		_ = os.Remove(path)
		_ = f.Close()
	}, nil
}

// test serves the model from two Macs and kills one of them.
func test(ctx context.Context, f *fleet.Fleet, root, python string) error {
	if err := deploy(ctx, f); err != nil {
		return err
	}
	k, err := makeKeys(ctx, f)
	if err != nil {
		return err
	}
	if err := refusals(ctx, f.URL, root, python, k); err != nil {
		return err
	}
	c, err := startClient(ctx, k.good, python, filepath.Join(root, "test", "failover", "client.py"), f.URL, deployment)
	if err != nil {
		return err
	}
	defer c.end()
	macs, err := c.waiting(ctx)
	if err != nil {
		return err
	}
	if macs[0] == macs[1] {
		return fmt.Errorf("both streams come from %s; the gateway should spread them", macs[0])
	}
	if err := f.WaitGatewayInFlight(ctx, 6); err != nil { // two streams, four behind them
		return err
	}
	took, err := killMac(f, macs[0])
	if err != nil {
		return err
	}
	fmt.Printf("   %s is dead: agent and engine killed within %s\n", macs[0], took.Round(time.Millisecond))
	results, err := c.results(ctx)
	if err != nil {
		return err
	}
	retries, err := f.GatewayMetric(ctx, "metalfleet_gateway_retries_total")
	if err != nil {
		return err
	}
	return judge(os.Stdout, results, macs[0], int(retries))
}

// deploy serves the model from both Macs, by one manifest: placement gives the
// second replica a Mac of its own, also where that Mac looks at the file later.
func deploy(ctx context.Context, f *fleet.Fleet) error {
	fmt.Println("   two replicas of SmolLM2, one request at a time each")
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	two := int32(2)
	md := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: deployment},
		Spec: v1alpha1.ModelDeploymentSpec{
			Model:    v1alpha1.ModelSource{Source: source},
			Replicas: &two,
			Context:  v1alpha1.ContextSpec{Tokens: 1024, Sequences: 1, CacheTokens: 2048},
		},
	}
	if err := f.Client.Create(ctx, md); err != nil {
		return fmt.Errorf("create the deployment: %w", err)
	}
	return waitServed(ctx, f, client.ObjectKeyFromObject(md), two)
}

// waitServed waits until the replicas are ready, each on a Mac of its own.
func waitServed(ctx context.Context, f *fleet.Fleet, key client.ObjectKey, want int32) error {
	return fleet.Poll(ctx, 100*time.Millisecond, "two replicas are ready on two Macs", func(ctx context.Context) error {
		var md v1alpha1.ModelDeployment
		if err := f.Client.Get(ctx, key, &md); err != nil {
			return err
		}
		var list v1alpha1.ModelReplicaList
		if err := f.Client.List(ctx, &list, client.InNamespace(key.Namespace)); err != nil {
			return err
		}
		macs := map[string]bool{}
		for _, r := range list.Items {
			macs[r.Spec.NodeName] = true
		}
		if md.Status.ReadyReplicas != want || len(macs) != int(want) {
			return fmt.Errorf("%d ready, on %d Macs; conditions %v", md.Status.ReadyReplicas, len(macs), md.Status.Conditions)
		}
		return nil
	})
}

// killMac ends a Mac's agent first, so that nothing starts the engine again.
func killMac(f *fleet.Fleet, mac string) (time.Duration, error) {
	engines, err := f.MacEngines(mac)
	if err != nil {
		return 0, err
	}
	if len(engines) != 1 {
		return 0, fmt.Errorf("%d engines run on the Mac %s, want 1", len(engines), mac)
	}
	began := time.Now()
	err = errors.Join(f.KillAgent(mac), engines[0].Kill())
	return time.Since(began), err
}
