package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// The collector is adjusted from the start, before the API server answers.
func TestTheOperatorKeepsItsHeapWithinItsContainer(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	const percent = 100
	defer debug.SetGCPercent(debug.SetGCPercent(percent))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'http://" + freeAddress(t) + "'}}]\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, logr.Discard(), settings{kubeconfig: file, namespace: "n"}) }()
	defer func() {
		stop()
		if err := <-ended; err == nil {
			t.Error("it ran without an API server")
		}
	}()
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	for range 500 {
		runtime.GC()
		if metrics.Read(sample); sample[0].Value.Uint64() != percent {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the percent stays %d", percent)
}
