//go:build oracle

package fuzzapi

import (
	"flag"
	"path/filepath"
	"testing"
	"time"
)

var (
	duration = flag.Duration("for", time.Minute, "how long requests are sent; at least 1m")
	seed     = flag.Uint64("seed", 1, "seed of every random choice; 0 takes a new one and prints it")
)

func TestTheAPIWithstandsRandomAndHostileRequests(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if *duration < time.Minute {
		t.Fatalf("-for=%v: it takes a minute at least", *duration)
	}
	o := options{root: root, keep: filepath.Join(root, ".run", "fuzz-api-failed"), length: *duration, seed: *seed,
		schemathesis: filepath.Join(root, ".cache", "oracle", "fuzz", "bin", "schemathesis")}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) % 1e9
	}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
