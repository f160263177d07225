package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// tolerance is the maximum difference between the freed bytes and the figure in
// /proc just before.
const tolerance = 0.05

// goneTimeout is the maximum time from a delete to the reclaim on the MacNode.
const goneTimeout = 90 * time.Second

// held is one engine before the delete.
type held struct {
	mac     string
	replica string // UID
	engine  fleet.Engine
	bytes   int64 // read here, from /proc
}

// assertAll continues from the response to the freed bytes, and fails at the
// first wrong result.
func (s *story) assertAll(ctx context.Context) error {
	s.step("kubectl get mdep,mr,mac")
	if err := s.assertTable(ctx); err != nil {
		return err
	}
	s.step("scaling to two Macs")
	if _, err := s.kubectl(ctx, "scale", "mdep", deployment, "--replicas=2"); err != nil {
		return err
	}
	if err := s.waitReady(ctx, 2); err != nil {
		return err
	}
	engines, err := s.readEngines(ctx, 2)
	if err != nil {
		return err
	}
	s.step("deleting the model")
	if _, err := s.kubectl(ctx, "delete", "mdep", deployment, "--wait=false"); err != nil {
		return err
	}
	for _, h := range engines {
		if err := s.assertFreed(ctx, h); err != nil {
			return fmt.Errorf("engine of Mac %s: %w", h.mac, err)
		}
	}
	if err := s.waitDeleted(ctx); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "get", "mac"); err != nil {
		return err
	}
	s.summary()
	return nil
}

// assertTable checks model, ready/desired, memory, freed and age in kubectl's
// output, each with a figure of the deployment that serves.
func (s *story) assertTable(ctx context.Context) error {
	// The figures follow Ready within a heartbeat of the agent.
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("no figures"))
	defer cancel()
	err := fleet.Poll(ctx, 200*time.Millisecond, "figures are available", func(ctx context.Context) error {
		md, _, err := s.look(ctx)
		if err != nil {
			return err
		}
		if md.Status.FootprintBytes == 0 {
			return errors.New("the memory of the deployment is 0")
		}
		return nil
	})
	if err != nil {
		return err
	}
	out, err := s.kubectl(ctx, "get", "mdep,mr,mac")
	if err != nil {
		return err
	}
	return checkTable(out, s.sourceInUse())
}

func (s *story) sourceInUse() string {
	if s.source != "" {
		return s.source
	}
	return "file://smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
}

// checkTable reads the deployment's part of what kubectl printed.
func checkTable(out, source string) error {
	tables := strings.Split(strings.TrimSpace(out), "\n\n")
	if len(tables) != 3 {
		return fmt.Errorf("kubectl printed %d tables, want 3: deployments, replicas, Macs", len(tables))
	}
	row, err := column(tables[0])
	if err != nil {
		return err
	}
	for name, want := range map[string]*regexp.Regexp{
		"MODEL":  regexp.MustCompile("^" + regexp.QuoteMeta(source) + "$"),
		"READY":  regexp.MustCompile(`^1/1$`),
		"MEMORY": regexp.MustCompile(`^[0-9.]+ [KMG]iB$`),
		"FREED":  regexp.MustCompile(`^(0|[0-9.]+ [KMG]?i?B)$`),
		"AGE":    regexp.MustCompile(`^[0-9]+[smh]`),
	} {
		if !want.MatchString(row[name]) {
			return fmt.Errorf("kubectl get mdep: column %s shows %q, want %s", name, row[name], want)
		}
	}
	for i, names := range [][]string{1: {"MAC", "READY", "MEMORY", "FREED", "AGE"}, 2: {"CHIP", "MEMORY", "CEILING", "USED", "FREED", "AGE"}} {
		if names == nil {
			continue
		}
		row, err := column(tables[i])
		if err != nil {
			return err
		}
		for _, name := range names {
			if row[name] == "" || row[name] == "<none>" {
				return fmt.Errorf("kubectl get: column %s of table %d is empty", name, i+1)
			}
		}
	}
	return nil
}

// column reads the first row of a table: kubectl aligns by columns and a cell
// may hold single spaces.
func column(table string) (map[string]string, error) {
	lines := strings.Split(table, "\n")
	if len(lines) < 2 {
		return nil, fmt.Errorf("table without rows: %q", table)
	}
	head, row := lines[0], lines[1]
	out := map[string]string{}
	starts := regexp.MustCompile(`\S+`).FindAllStringIndex(head, -1)
	for i, at := range starts {
		end := len(row)
		if i+1 < len(starts) {
			end = min(end, starts[i+1][0])
		}
		if at[0] < end {
			out[head[at[0]:at[1]]] = strings.TrimSpace(row[at[0]:end])
		}
	}
	return out, nil
}

// readEngines finds the engine of every replica by the pid in the MacNode's
// status, and reads its memory from /proc.
func (s *story) readEngines(ctx context.Context, want int) ([]held, error) {
	s.step("reading the memory of each engine from /proc")
	living, err := fleet.Engines(s.dir)
	if err != nil {
		return nil, err
	}
	var macs v1alpha1.MacNodeList
	if err := s.fleet.Client.List(ctx, &macs); err != nil {
		return nil, fmt.Errorf("list Macs: %w", err)
	}
	var out []held
	for _, mac := range macs.Items {
		for _, a := range mac.Status.Assignments {
			h := held{mac: mac.Name, replica: a.ReplicaUID}
			for _, e := range living {
				if int64(e.PID) == a.PID {
					h.engine = e
				}
			}
			if h.engine.PID == 0 {
				return nil, fmt.Errorf("no engine with pid %d is running, but Mac %s reports it", a.PID, mac.Name)
			}
			if h.bytes, err = fleet.Footprint(h.engine.PID); err != nil {
				return nil, err
			}
			fmt.Printf("   %-8s pid %-7d %s (%d bytes)\n", h.mac, h.engine.PID, v1alpha1.FormatBytes(h.bytes), h.bytes)
			out = append(out, h)
		}
	}
	if used := countMacs(out); len(out) != want || used != want || len(living) != want {
		return nil, fmt.Errorf("%d engines on %d Macs (%d processes), want one on each of %d", len(out), used, len(living), want)
	}
	return out, nil
}

func countMacs(all []held) int {
	names := map[string]bool{}
	for _, h := range all {
		names[h.mac] = true
	}
	return len(names)
}

// assertFreed checks that the reclaim on the MacNode and its Event report the
// bytes of /proc, which exceed the weights, and that the process has ended.
func (s *story) assertFreed(ctx context.Context, h held) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goneTimeout, fmt.Errorf("timed out after %s", goneTimeout))
	defer cancel()
	var last v1alpha1.Reclaim
	err := fleet.Poll(ctx, 50*time.Millisecond, "the MacNode reports the reclaim", func(ctx context.Context) error {
		mac := &v1alpha1.MacNode{}
		if err := s.fleet.Client.Get(ctx, client.ObjectKey{Name: h.mac}, mac); err != nil {
			return err
		}
		if len(mac.Status.Reclaims) == 0 || mac.Status.Reclaims[0].ReplicaUID != h.replica {
			return errors.New("no reclaim for that replica")
		}
		last = mac.Status.Reclaims[0]
		return nil
	})
	if err != nil {
		return err
	}
	if last.FreedBytes == nil {
		return errors.New("the last reclaim has no freed bytes")
	}
	if err := s.checkFreed(h, *last.FreedBytes, "the MacNode's last reclaim"); err != nil {
		return err
	}
	told, err := s.eventBytes(ctx, h.mac)
	if err != nil {
		return err
	}
	if err := s.checkFreed(h, told, "the Event"); err != nil {
		return err
	}
	if h.engine.Alive() {
		return fmt.Errorf("process %d is still running", h.engine.PID)
	}
	fmt.Printf("   %-8s freed %s (%d bytes), %+.1f %% from /proc; exit %s, host check %s, %d ms; process %d has ended\n",
		h.mac, v1alpha1.FormatBytes(*last.FreedBytes), *last.FreedBytes,
		100*(float64(*last.FreedBytes)/float64(h.bytes)-1), last.Exit, last.HostCheck, last.DurationMilliseconds, h.engine.PID)
	return nil
}

func (s *story) checkFreed(h held, freed int64, who string) error {
	weights, err := os.Stat(filepath.Join(s.modelRoot, strings.TrimPrefix(s.sourceInUse(), "file://")))
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	return checkBytes(who, freed, h.bytes, weights.Size())
}

func checkBytes(who string, freed, read, weights int64) error {
	if read <= 0 {
		return fmt.Errorf("/proc reports %d bytes in use", read)
	}
	if off := math.Abs(float64(freed)/float64(read) - 1); off > tolerance {
		return fmt.Errorf("%s reports %d freed bytes, /proc reported %d: a difference of %.1f %%, want at most %.0f %%", who, freed, read, 100*off, 100*tolerance)
	}
	if freed <= weights {
		return fmt.Errorf("%s reports %d freed bytes, want more than the %d bytes of the weights", who, freed, weights)
	}
	return nil
}

var freedBytes = regexp.MustCompile(`([0-9]+) bytes`)

// eventBytes finds the Event about a Mac that reports the freed bytes.
func (s *story) eventBytes(ctx context.Context, mac string) (int64, error) {
	var bytes int64
	err := fleet.Poll(ctx, 50*time.Millisecond, "an Event reports the freed bytes", func(ctx context.Context) error {
		var events corev1.EventList
		if err := s.fleet.Client.List(ctx, &events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind != "MacNode" || e.InvolvedObject.Name != mac {
				continue
			}
			if m := freedBytes.FindStringSubmatch(e.Message); m != nil && strings.Contains(strings.ToLower(e.Message), "freed") {
				n, err := strconv.ParseInt(m[1], 10, 64)
				bytes = n
				return err
			}
		}
		return fmt.Errorf("none among %d", len(events.Items))
	})
	return bytes, err
}

// waitDeleted waits until the finalizers release the deployment.
func (s *story) waitDeleted(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goneTimeout, fmt.Errorf("timed out after %s", goneTimeout))
	defer cancel()
	return fleet.Poll(ctx, 50*time.Millisecond, "the deployment is deleted", func(ctx context.Context) error {
		_, _, err := s.look(ctx)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errors.New("it still exists")
		}
		return err
	})
}

// summary prints the seconds of each step.
func (s *story) summary() {
	s.step("duration of each step in seconds")
	for _, t := range s.took {
		fmt.Printf("   %6.1f  %s\n", t.time.Seconds(), t.name)
	}
}
