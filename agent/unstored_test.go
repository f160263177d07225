package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// The disk is full when a desired state arrives: its weights and settings count all the
// same, and it is stored once there is room.
func TestADesiredStateThatWasNotStoredIsInForceAndStoredLater(t *testing.T) {
	m := newCachingMac(t, 64<<20)
	m.boot()
	m.orders.next <- ordersOf(1)
	file := filepath.Join(m.state, "journal.json")
	poll(t, func() error { _, err := os.Stat(file); return err })
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(file, "full"), 0o700); err != nil { // no file can be renamed over it
		t.Fatal(err)
	}

	a := m.caching()
	a.Desired = v1alpha1.DesiredDownloaded
	o := ordersOf(2, a)
	o.Settings = v1alpha1.AgentSettings{LogLevel: v1alpha1.LogDebug}
	m.orders.next <- o
	poll(t, func() error {
		if s := m.reports.status(); s.ObservedGeneration != 2 || s.Settings.LogLevel != v1alpha1.LogDebug {
			return fmt.Errorf("generation %d with log level %s", s.ObservedGeneration, s.Settings.LogLevel)
		}
		return nil
	})
	if keep, known := (weightUse{m.agent.journal}).spared(); !known || !keep(a.Model.Digest) {
		t.Error("the assigned weights may be removed from the disk")
	}

	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	poll(t, func() error {
		j, err := readJournal(file)
		if err == nil && (j.Desired == nil || j.Desired.Generation != 2) {
			err = fmt.Errorf("the journal has %+v", j.Desired)
		}
		return err
	})
}

func readJournal(file string) (s journal.State, err error) {
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	return s, err
}
