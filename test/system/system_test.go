package system

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/testenv"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// patience bounds each wait: much more than a busy machine needs, because a wait
// costs nothing where things work.
const patience = 3 * time.Minute

// The Macs of the test, small to large.
const (
	small  = "small"
	middle = "middle"
	large  = "large"
)

// suite is one fleet, shared by all subtests.
type suite struct {
	*fleet.Fleet
	models string // the model root
	remote *remote
	hub    *hubtest.Hub
}

// TestTheWholeSystem is one story on one fleet. Parts that disturb one another
// follow one another; the others run at once.
func TestTheWholeSystem(t *testing.T) {
	s := start(t)
	t.Run("at once", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"a source that does not exist":         s.sourceMissing,
			"a source outside the model root":      s.sourceOutside,
			"a truncated file":                     s.sourceTruncated,
			"a file with another digest":           s.sourceOfAnotherDigest,
			"a model that is too large":            s.tooLarge,
			"a name that somebody owns":            s.nameConflict,
			"a download that breaks off":           s.download,
			"a download with another digest":       s.downloadOfAnotherDigest,
			"a folder of a hub":                    s.folderOfAHub,
			"an encoder of a hub":                  s.encoderOfAHub,
			"unknown fields and impossible sizes":  s.refusedByTheAPI,
			"requests that cannot be answered":     s.badRequests,
			"a source that no administrator opens": s.sourceOfAPrivateHost,
			"a namespace is deleted":               s.namespaceDeleted,
			"a model is deleted":                   s.deleted,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	s.deploy(t, "default", "slow", source("slow.gguf"), replicas(2), tokens(slowContext), chips("M4Max", "M2Ultra"))
	s.waitReady(t, "default", "slow", 2)
	t.Run("an answer, whole and streamed", s.answers)
	t.Run("an engine is killed", s.engineKilled)
	t.Run("an agent is killed", s.agentKilled)
	t.Run("a Mac is dead", s.deadMac) // small is gone from here on
	t.Run("operator and API server are away", s.outage)
}

// start brings the fleet up; the end of the test takes it down and wants
// nothing left.
func start(t *testing.T) *suite {
	t.Helper()
	if !testenv.HasControllers() {
		t.Fatal("kube-controller-manager is not built, and namespaces cannot end without it: unset KUBEBUILDER_ASSETS and run `make build kube`")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{models: t.TempDir()}
	s.writeModels(t)
	s.remote = newRemote(t)
	s.hub = &hubtest.Hub{}
	served := httptest.NewTLSServer(s.hub) // its certificate is that of every such server
	t.Cleanup(served.Close)
	flags := []string{"--allow-source-cidr=127.0.0.1/32", "--hub-endpoint=" + served.URL}
	env := []string{"SSL_CERT_FILE=" + s.remote.roots}
	// A short path, as sockets lie below it.
	scratch, err := os.MkdirTemp("", "mf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(scratch) })
	dir := filepath.Join(scratch, "run")
	s.Fleet, err = fleet.Start(t.Context(), fleet.Options{
		Root: root, Dir: dir, ModelRoot: s.models, Say: func(step string) { t.Log("start:", step) },
		Macs: []fleet.Mac{
			{Name: small, Chip: "M4", Memory: "16Gi", Flags: flags, Env: env},
			{Name: middle, Chip: "M4Max", Memory: "64Gi", Flags: flags, Env: env},
			{Name: large, Chip: "M2Ultra", Memory: "192Gi", Flags: flags, Env: env},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(t, dir, filepath.Join(root, ".run", "system-failed")) })
	return s
}

// stop ends the fleet, keeps the logs of a failed test and wants nothing left.
func (s *suite) stop(t *testing.T, dir, logs string) {
	if t.Failed() {
		t.Logf("the logs are in %s (%v)", logs, s.KeepLogs(logs))
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if left, err := fleet.Engines(dir); err != nil || len(left) > 0 {
		t.Errorf("engines that are left: %v (%v)", left, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is left: %v", err)
	}
}

// slowContext is that of slow.gguf: an answer of full length takes seconds.
const slowContext = 4096

// slow is a model whose answers of full length take seconds.
func slow(seed uint64) tinymodel.Config {
	c := tinymodel.Default()
	c.Name, c.Seed, c.Context, c.Endless = "slow", seed, slowContext, true
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 4, 256, 768, 8, 4, 32
	return c
}

// heavyBytes make the figures of an engine large beside its own bookkeeping.
const heavyBytes = 64 << 20

// writeModels lays the models below the model root, and one outside of it.
func (s *suite) writeModels(t *testing.T) {
	t.Helper()
	for name, config := range map[string]tinymodel.Config{
		"tiny.gguf": tinymodel.Default(), "slow.gguf": slow(2), "heavy.gguf": tinymodel.Large(heavyBytes),
	} {
		if err := tinymodel.Write(s.file(name), config); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(s.file("slow.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file("cut.gguf"), whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "secret.gguf")
	if err := os.WriteFile(outside, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, s.file("link.gguf")); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) file(name string) string { return filepath.Join(s.models, name) }

// eventually waits until ask has no objection.
func eventually(t *testing.T, what string, limit time.Duration, ask func(context.Context) error) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	if err := fleet.Poll(ctx, 20*time.Millisecond, what, ask); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}
