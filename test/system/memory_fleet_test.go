package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// The Macs of the tests of memory, one for each kind of test, and the chips by
// which a deployment finds its own.
const (
	shelf, shelfChip   = "shelf", "M1"
	pond, pondChip     = "pond", "M1Max"
	ward, wardChip     = "ward", "M2"
	street, streetChip = "street", "M2Max"
	attic, atticChip   = "attic", "M3"
)

// Words in the names of model files that make engine.sh do more than start.
const (
	// leakyWord: the engine leaks leakBytes with each step.
	leakyWord = "leaky"
	// doomedWord: the process stops itself before it loads anything.
	doomedWord = "doomed"
	leakBytes  = 1 << 20
)

// memoryPrograms starts the engine, as the agent does, with what a model's
// name asks for. The process stays the same, so the agent sees the real one.
const memoryPrograms = `#!/bin/bash
config=
for a; do [ "$last" = --config ] && config=$a; last=$a; done
case $(cat "$config") in
  *%[2]s*) exec "%[1]s" "$@" --test-leak=%[3]d ;;
  *%[4]s*) kill -STOP $$ ;;
esac
exec "%[1]s" "$@"
`

// memorySuite is the fleet that the tests of memory share: they run at once,
// each on its own Mac.
type memorySuite struct {
	*suite
	scratch string
	slow    *slowServer
}

var memoryFleet struct {
	once  sync.Once
	suite *memorySuite
	err   error
}

// TestMain takes the shared fleet back after the last test.
func TestMain(m *testing.M) {
	code := m.Run()
	if s := memoryFleet.suite; s != nil {
		if err := s.takeBack(code != 0); err != nil {
			fmt.Fprintln(os.Stderr, "the fleet of the tests of memory:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// remembering is the shared fleet.
func remembering(t *testing.T) *memorySuite {
	t.Helper()
	memoryFleet.once.Do(func() { memoryFleet.suite, memoryFleet.err = startMemoryFleet(t) })
	if memoryFleet.err != nil {
		t.Fatal(memoryFleet.err)
	}
	return memoryFleet.suite
}

// startMemoryFleet outlives the test that asked for it first.
func startMemoryFleet(t *testing.T) (*memorySuite, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return nil, err
	}
	s := &memorySuite{suite: &suite{models: filepath.Join(scratch, "models")}, scratch: scratch}
	if err := s.writeMemoryModels(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(scratch))
	}
	if s.slow, err = newSlowServer(scratch); err != nil {
		return nil, errors.Join(err, os.RemoveAll(scratch))
	}
	engine := filepath.Join(scratch, "engine.sh")
	script := fmt.Sprintf(memoryPrograms, filepath.Join(root, "bin", "engine"), leakyWord, leakBytes, doomedWord)
	if err := os.WriteFile(engine, []byte(script), 0o755); err != nil {
		return nil, err
	}
	flags := []string{"--cache-free=0", "--engine=" + engine, "--allow-source-cidr=127.0.0.1/32"}
	// What an engine that does not answer is waited for; the defaults take minutes.
	env := []string{"SSL_CERT_FILE=" + s.slow.roots, "METALFLEET_TEST=1", "METALFLEET_TEST_TIMING=stop=6s,term=2s,silence=12s"}
	options := fleet.Options{Root: root, Dir: filepath.Join(scratch, "run"), ModelRoot: s.models}
	for name, chip := range map[string]string{shelf: shelfChip, pond: pondChip, ward: wardChip, street: streetChip, attic: atticChip} {
		options.Macs = append(options.Macs, fleet.Mac{Name: name, Chip: chip, Memory: "64Gi", Flags: flags, Env: env})
	}
	ctx := context.WithoutCancel(t.Context())
	if s.Fleet, err = fleet.Start(ctx, options); err != nil {
		return nil, errors.Join(err, s.slow.close(), os.RemoveAll(scratch))
	}
	return s, nil
}

func (s *memorySuite) takeBack(failed bool) error {
	var errs []error
	if failed {
		logs := filepath.Join("..", "..", ".run", "system-memory-failed")
		errs = append(errs, s.KeepLogs(logs))
		fmt.Fprintln(os.Stderr, "the logs are in", logs)
	}
	errs = append(errs, s.Stop(context.Background()), s.slow.close())
	left, err := fleet.Engines(s.Dir())
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("engines that are left: %v", left)
	}
	return errors.Join(append(errs, err, os.RemoveAll(s.scratch))...)
}

// The models of these tests. A token of paced takes milliseconds, so that its
// answers outlive what happens beside them; nimble speaks as fast as it can.
func (s *memorySuite) writeMemoryModels() error {
	if err := os.Mkdir(s.models, 0o755); err != nil {
		return err
	}
	paced := slow(5)
	nimble := tinymodel.Default()
	nimble.Name, nimble.Seed, nimble.Context, nimble.Endless = "nimble", 6, nimbleContext, true
	for name, c := range map[string]tinymodel.Config{
		"paced.gguf": paced, "nimble.gguf": nimble, leakyWord + ".gguf": paced, doomedWord + ".gguf": paced,
		"light.gguf": tinymodel.Default(), "heavy.gguf": tinymodel.Large(2 * heavyBytes),
	} {
		if err := tinymodel.Write(filepath.Join(s.models, name), c); err != nil {
			return err
		}
	}
	return nil
}

// nimbleContext makes an answer of full length larger than what sockets buffer.
const nimbleContext = 32768

// model deploys one and takes it back at the end, whatever became of it.
func (s *memorySuite) model(t *testing.T, m fleet.Model) {
	t.Helper()
	if err := s.Deploy(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Undeploy(context.WithoutCancel(t.Context()), m.Name); err != nil {
			t.Error(err)
		}
	})
}

// rouse loads a model by a request.
func (s *memorySuite) rouse(t *testing.T, name string) fleet.Resident {
	t.Helper()
	r, err := s.Rouse(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// gone wants an engine's end reported once, and returns how it was.
func (s *memorySuite) gone(t *testing.T, r fleet.Resident) v1alpha1.Reclaim {
	t.Helper()
	var last v1alpha1.Reclaim
	id := fmt.Sprintf("%s/%d/", r.Replica.UID, r.Replica.Spec.Epoch)
	eventually(t, fmt.Sprintf("Mac %s tells of the end of process %d", r.Replica.Spec.NodeName, r.Engine.PID), patience, func(ctx context.Context) error {
		node, err := s.Mac(ctx, r.Replica.Spec.NodeName)
		if err != nil {
			return err
		}
		found := 0
		for _, c := range node.Status.Reclaims {
			if strings.HasPrefix(c.ID, id) {
				last = c
				found++
			}
		}
		if found != 1 {
			return fmt.Errorf("%d reclaims of %s", found, r.Replica.Name)
		}
		return nil
	})
	if r.Engine.Alive() {
		t.Errorf("process %d lives", r.Engine.PID)
	}
	return last
}

// settled wants a Mac to hold so many engines, and its ledger to be what they
// were promised.
func (s *memorySuite) settled(t *testing.T, mac string, engines int) {
	t.Helper()
	eventually(t, fmt.Sprintf("Mac %s holds %d engines and no more", mac, engines), patience, func(ctx context.Context) error {
		all, err := s.MacEngines(mac)
		if err != nil {
			return err
		}
		if len(all) != engines {
			return fmt.Errorf("%d engines: %v", len(all), all)
		}
		if engines > 0 {
			return s.CheckLedger(ctx, mac)
		}
		return s.CheckEmpty(ctx, mac)
	})
}

// withdrawn wants a Mac of which every model was deleted to have no order left,
// and to report none.
func (s *memorySuite) withdrawn(t *testing.T, mac string) {
	t.Helper()
	eventually(t, "the orders of "+mac+" are withdrawn", patience, func(ctx context.Context) error {
		node, err := s.Mac(ctx, mac)
		if err == nil && len(node.Spec.Assignments)+len(node.Status.Assignments) > 0 {
			err = fmt.Errorf("orders %+v; it reports %+v", node.Spec.Assignments, node.Status.Assignments)
		}
		return err
	})
}

// noHold deletes a model that may drain for drainSeconds and wants it gone long
// before: the drain waits for holds, and there is none.
func (s *memorySuite) noHold(t *testing.T, name string) v1alpha1.Reclaim {
	t.Helper()
	r, err := s.Resident(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.Undeploy(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > drainSeconds*time.Second/2 {
		t.Errorf("the drain of %s took %s: a hold was left", name, took)
	}
	return s.gone(t, r)
}

// drainSeconds is far more than any drain without a hold takes.
const drainSeconds = 300

// says wants a condition of a replica to give a reason.
func (s *memorySuite) says(t *testing.T, model, kind, reason string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s of %s says %s", kind, model, reason), patience, func(ctx context.Context) error {
		r, err := s.Replica(ctx, model)
		if err != nil {
			return err
		}
		for _, c := range r.Status.Conditions {
			if c.Type == kind && c.Reason == reason {
				return nil
			}
		}
		return errors.New(sentences(r.Status.Conditions))
	})
}

// telling is a long answer that is being read.
type telling struct {
	stop  context.CancelFunc
	ended chan struct{}
	// answer and err are read after ended is closed.
	answer fleet.Answer
	err    error
}

// tell begins a long answer and returns once its first words are there.
func (s *memorySuite) tell(t *testing.T, model string, tokens int) *telling {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &telling{stop: cancel, ended: make(chan struct{})}
	begun := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(a.ended)
		a.answer, a.err = fleet.Ask(ctx, s.URL, fleet.Question{
			Model: model, Text: "Tell a long story", Stream: true, MaxTokens: tokens,
			OnText: func(string) { once.Do(func() { close(begun) }) },
		})
	}()
	t.Cleanup(func() { cancel(); <-a.ended })
	select {
	case <-begun:
	case <-a.ended:
		t.Fatalf("the long answer of %s ended before it began: %v", model, a.err)
	case <-time.After(patience):
		t.Fatalf("the long answer of %s does not begin", model)
	}
	return a
}

// whole waits for the end of an answer that nothing disturbed.
func (a *telling) whole(t *testing.T, want string) {
	t.Helper()
	a.end(t)
	if a.err != nil || a.answer.Finish != "length" {
		t.Fatalf("the other answer ended with %q: %v", a.answer.Finish, a.err)
	}
	if want != "" && a.answer.Text != want {
		t.Error("the other answer has not the words that it has when nothing disturbs it")
	}
}

// broken wants an answer to have ended with an error that a client understands.
func (a *telling) broken(t *testing.T) *openai.Error {
	t.Helper()
	a.end(t)
	var typed *openai.Error
	if !errors.As(a.err, &typed) || typed.Code == "" || typed.Message == "" {
		t.Fatalf("the answer ended with %v, want a typed error", a.err)
	}
	if a.answer.Finish != "" {
		t.Errorf("a broken answer has the finish reason %q", a.answer.Finish)
	}
	return typed
}

func (a *telling) end(t *testing.T) {
	t.Helper()
	select {
	case <-a.ended:
	case <-time.After(patience):
		t.Fatal("the answer does not end")
	}
}
