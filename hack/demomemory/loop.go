package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// manifest is what the user applies.
const manifest = `apiVersion: metalfleet.dev/v1alpha1
kind: ModelDeployment
metadata:
  name: %s
spec:
  model:
    source: file://%s
  context:
    tokens: %d
    sequences: 2
  residency:
    policy: OnDemand   # the first request loads it; it goes when the memory is needed
    idleSeconds: 0     # and not before
  placement:
    chips: [M2Ultra]
`

// loop is the demonstration.
func (d *demo) loop(ctx context.Context) error {
	mac := macs()[0].Name
	if err := d.apply(ctx); err != nil {
		return err
	}
	fmt.Println("\n== a request loads it")
	if err := d.ask(ctx); err != nil {
		return err
	}
	r, err := d.loaded(ctx)
	if err != nil {
		return err
	}
	own, err := fleet.Footprint(r.Engine.PID)
	if err != nil {
		return err
	}
	fmt.Printf("   its engine is process %d and holds %d bytes, says /proc\n", r.Engine.PID, own)
	if err := d.kubectl(ctx, []string{"PRESSURE", "Normal"}, "get", "mac", "-o", "wide"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, []string{name}, "get", "md,mr"); err != nil {
		return err
	}

	fmt.Println("\n== the Mac's ceiling is lowered below what is in use")
	ceiling := own * 102 / 100
	patch := fmt.Sprintf(`{"spec":{"memory":{"ceiling":"%d"}}}`, ceiling)
	if err := d.kubectl(ctx, []string{"patched"}, "patch", "mac", mac, "--type=merge", "-p", patch); err != nil {
		return err
	}
	freed, err := d.evicted(ctx, mac, r, own)
	if err != nil {
		return err
	}
	if err := d.event(ctx, mac, freed); err != nil {
		return err
	}
	if err := d.kubectl(ctx, []string{v1alpha1.FormatBytes(freed)}, "get", "mac", mac, "-o", "wide"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, []string{v1alpha1.FormatBytes(freed)}, "get", "md,mr"); err != nil {
		return err
	}
	return d.comesBack(ctx, mac, r)
}

// apply makes the deployment and waits until requests may come.
func (d *demo) apply(ctx context.Context) error {
	fmt.Println("\n== a model that the first request loads")
	tokens := 1024
	if d.file != source {
		tokens = 256 // what a tiny model was made for
	}
	text := fmt.Sprintf(manifest, name, d.file, tokens)
	for line := range strings.Lines(text) {
		fmt.Print("   | ", line)
	}
	if _, err := d.run(ctx, []byte(text), "apply", "-f", "-"); err != nil {
		return err
	}
	if err := d.WaitDeployed(ctx, name); err != nil {
		return err
	}
	if _, err := d.Resident(ctx, name); !errors.Is(err, fleet.ErrNotResident) {
		return fmt.Errorf("it has an engine before anybody asked it (%w)", err)
	}
	return d.kubectl(ctx, []string{"OnDemand"}, "get", "mr")
}

// ask asks the question, and again after a 503: a model that had to go for
// memory stays away for some seconds.
func (d *demo) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	began, told := time.Now(), false
	var a fleet.Answer
	err := fleet.Poll(ctx, 500*time.Millisecond, "the question is answered", func(ctx context.Context) (err error) {
		a, err = fleet.Ask(ctx, d.URL, fleet.Question{Model: name, Text: question, MaxTokens: 32})
		var refusal *openai.Error
		switch {
		case errors.As(err, &refusal) && refusal.Status == http.StatusServiceUnavailable:
			if !told {
				fmt.Printf("   HTTP 503: %s\n   ... it is asked again until it answers\n", refusal.Message)
			}
			told = true
		case err != nil:
			cancel() // nothing that waiting helps
		}
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("   %s %q after %s, from Mac %s\n", question, a.Text, time.Since(began).Round(10*time.Millisecond), a.Mac)
	if d.file == source && !strings.Contains(a.Text, expected) {
		return fmt.Errorf("the answer %q does not contain %q", a.Text, expected)
	}
	return nil
}

// loaded finds the engine, once its figures are told.
func (d *demo) loaded(ctx context.Context) (r fleet.Resident, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	err = fleet.Poll(ctx, 100*time.Millisecond, "the engine and what it holds are told", func(ctx context.Context) (err error) {
		if r, err = d.Resident(ctx, name); err == nil && r.Replica.Status.Memory.FootprintBytes == 0 {
			err = errors.New("its footprint is not told yet")
		}
		return err
	})
	return r, err
}

// evicted waits for the reclaim and compares it with the own reading.
func (d *demo) evicted(ctx context.Context, mac string, r fleet.Resident, own int64) (freed int64, err error) {
	err = d.WaitMac(ctx, mac, "the Mac tells that the model was evicted", patience, func(node *v1alpha1.MacNode) error {
		for _, c := range node.Status.Reclaims {
			if c.ReplicaUID == string(r.Replica.UID) && c.FreedBytes != nil {
				freed = *c.FreedBytes
				fmt.Printf("   evicted: %s, exit %s, %d bytes freed in %d ms, %+.1f %% of what /proc said; process %d is gone\n",
					c.Reason, c.Exit, freed, c.DurationMilliseconds, 100*(float64(freed)/float64(own)-1), r.Engine.PID)
				return nil
			}
		}
		return errors.New("no reclaim of it")
	})
	if err != nil {
		return 0, err
	}
	if r.Engine.Alive() {
		return freed, fmt.Errorf("process %d lives still", r.Engine.PID)
	}
	return freed, checkFreed(freed, own)
}

func checkFreed(freed, own int64) error {
	if off := math.Abs(float64(freed)/float64(own) - 1); !(off <= tolerance+1e-9) {
		return fmt.Errorf("%d bytes were freed, /proc said %d", freed, own)
	}
	return nil
}

// event waits for the Event and shows it.
func (d *demo) event(ctx context.Context, mac string, freed int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	selector := "involvedObject.kind=MacNode,involvedObject.name=" + mac
	bytes := strconv.FormatInt(freed, 10) + " bytes"
	err := fleet.Poll(ctx, 250*time.Millisecond, "an Event tells what was freed", func(ctx context.Context) error {
		out, err := d.run(ctx, nil, "get", "events", "-A", "--field-selector="+selector)
		if err == nil {
			err = wantWords(out, bytes)
		}
		return err
	})
	if err != nil {
		return err
	}
	return d.kubectl(ctx, []string{bytes}, "get", "events", "-A", "--field-selector="+selector)
}

// comesBack raises the ceiling and asks again.
func (d *demo) comesBack(ctx context.Context, mac string, before fleet.Resident) error {
	fmt.Println("\n== the ceiling is raised, and a request brings the model back")
	if err := d.kubectl(ctx, []string{"patched"}, "patch", "mac", mac, "--type=merge", "-p", `{"spec":{"memory":{"ceiling":null}}}`); err != nil {
		return err
	}
	if err := d.ask(ctx); err != nil {
		return err
	}
	r, err := d.loaded(ctx)
	if err != nil {
		return err
	}
	if r.Engine.PID == before.Engine.PID || r.Replica.UID != before.Replica.UID {
		return fmt.Errorf("replica %s serves with process %d, before it was %s with %d", r.Replica.Name, r.Engine.PID, before.Replica.Name, before.Engine.PID)
	}
	fmt.Printf("   its engine is process %d\n", r.Engine.PID)
	if err := d.kubectl(ctx, []string{"Normal"}, "get", "mac", mac, "-o", "wide"); err != nil {
		return err
	}
	return errors.Join(d.kubectl(ctx, []string{name}, "get", "md,mr"), d.CheckLedger(ctx, mac))
}
