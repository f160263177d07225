package agent

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/patience"
)

// accepting is what an agent says of the condition Accepting.
func accepting(s v1alpha1.MacNodeStatus) string {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAccepting)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

func (m *mac) waitAccepting(want string) {
	m.t.Helper()
	poll(m.t, func() error {
		if got := accepting(m.reports.status()); got != want {
			return fmt.Errorf("Accepting is %q, want %q", got, want)
		}
		return nil
	})
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}

func TestAnAgentOnTrialTakesNoRequestBeforeItProvedItself(t *testing.T) {
	output, ready := pipe(t)
	life, launcher := pipe(t)
	m := newMac(t, tinymodel.Default())
	m.launched = upgrade.NewLaunched(ready, life, true)
	m.boot()
	m.waitAccepting("False/AgentUpgrading")
	m.launched.Reported()
	m.launched.Reported()
	m.waitAccepting("False/AgentUpgrading")
	if m.agent.accepting.get().yes {
		t.Error("a status alone is taken for the proof")
	}
	m.launched.Renewed()
	word, err := io.ReadAll(output)
	if err != nil || string(word) != "ready" {
		t.Errorf("the launcher output %q, %v", word, err)
	}
	m.waitAccepting("True/Accepted")
	if err := launcher.Close(); err != nil { // it was killed
		t.Fatal(err)
	}
	select {
	case err := <-m.ended:
		close(m.ended)
		if err != nil || m.agent.Upgrading() {
			t.Errorf("ended with %v, for an upgrade: %v", err, m.agent.Upgrading())
		}
	case <-time.After(patience.Of(t)):
		t.Fatal("an agent without its launcher keeps running")
	}
}

func TestAnAgentMakesWayOnceItIsDrained(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.boot()
	m.waitAccepting("True/Accepted")
	m.agent.drained <- time.Minute
	select {
	case err := <-m.ended:
		close(m.ended)
		if err != nil || !m.agent.Upgrading() {
			t.Errorf("ended with %v, for an upgrade: %v", err, m.agent.Upgrading())
		}
	case <-time.After(patience.Of(t)):
		t.Fatal("it does not end")
	}
	if got := accepting(*m.reports.said); got != "False/AgentUpgrading" {
		t.Errorf("its last word is %q", got)
	}
}

func TestAnAgentThatIsToldToEndMakesNoWay(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.boot()
	m.waitAccepting("True/Accepted")
	most := time.Minute
	m.agent.replaced.Store(&most) // a build was ready at that very moment
	m.halt()
	if m.agent.Upgrading() {
		t.Error("it would start another agent, though it was asked to stop")
	}
}
