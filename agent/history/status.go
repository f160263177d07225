package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// figures writes those that are not zero.
func figures(pairs ...any) string {
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		if n := pairs[i+1].(int64); n != 0 {
			out = append(out, fmt.Sprintf("%s %s", pairs[i], v1alpha1.FormatBytes(n)))
		}
	}
	return strings.Join(out, ", ")
}

func (w *World) status(a *arguments) (string, error) {
	if err := a.done(); err != nil {
		return "", err
	}
	if !w.agent.running() {
		return "no agent runs", nil
	}
	s := w.agent.pool.Snapshot()
	m := &s.Memory
	var b strings.Builder
	fmt.Fprintf(&b, "mac: %s, ceiling %s (%s)", m.PressureLevel, v1alpha1.FormatBytes(m.CeilingBytes), m.CeilingTerm)
	if m.EffectiveCeilingBytes != m.CeilingBytes {
		fmt.Fprintf(&b, ", now %s (%s)", v1alpha1.FormatBytes(m.EffectiveCeilingBytes), m.EffectiveCeilingTerm)
	}
	fmt.Fprintf(&b, "\n  %s\n", figures("capacity", m.CapacityBytes, "reserved", m.ReservedBytes, "footprint", m.FootprintBytes,
		"active", m.ActiveBytes, "accounted", m.AccountedBytes, "pooled", m.PooledBytes, "foreign", m.ForeignBytes, "free", m.FreeBytes,
		"stranded", m.StrandedBytes, "swap", m.SwapUsedBytes))
	fmt.Fprintf(&b, "  freed %s, indeterminate %d\n", v1alpha1.FormatBytes(m.FreedBytesTotal), m.IndeterminateReclaims)
	for _, c := range s.Conditions {
		if c.Status == metav1.ConditionTrue {
			fmt.Fprintf(&b, "  %s: %s, %s\n", c.Type, c.Reason, c.Message)
		}
	}
	holds := map[string]int{}
	for _, e := range w.agent.pool.Endpoints() {
		holds[e.UID] += e.Holds
	}
	for i := range s.Assignments {
		replica(&b, &s.Assignments[i], holds)
	}
	for _, r := range slices.SortedStableFunc(slices.Values(s.Reclaims), newest) {
		fmt.Fprintf(&b, "reclaim %s: %s, %s, freed %s, %s\n", r.ID, r.Reason, r.Exit, orUnknown(r.FreedBytes), r.HostCheck)
	}
	return strings.TrimSpace(b.String()), nil
}

// newest first, and by id in one instant.
func newest(a, b v1alpha1.Reclaim) int {
	return cmp.Or(b.Time.Compare(a.Time.Time), compareNames(a.ID, b.ID))
}

func orUnknown(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return v1alpha1.FormatBytes(*n)
}

// replica writes one, with the messages of conditions that a person would ask
// about.
func replica(b *strings.Builder, r *v1alpha1.AssignmentStatus, holds map[string]int) {
	fmt.Fprintf(b, "%s: %s", r.ReplicaUID, r.Progress.Stage)
	if n := holds[r.ReplicaUID]; n > 0 {
		fmt.Fprintf(b, ", holds %d", n)
	}
	if r.Restarts > 0 {
		fmt.Fprintf(b, ", restarts %d", r.Restarts)
	}
	if r.Epoch > 1 {
		fmt.Fprintf(b, ", epoch %d", r.Epoch)
	}
	m, prefixes := &r.Memory, int64(0)
	if r.Activity != nil {
		prefixes = r.Activity.CacheBytes
	}
	if f := figures("reserved", m.ReservedBytes, "limit", m.LimitBytes, "footprint", m.FootprintBytes, "weights", m.WeightsBytes,
		"kv", m.KVInUseBytes, "prefixes", prefixes, "pooled", m.PooledBytes, "freed in all", r.Freed.TotalBytes); f != "" {
		fmt.Fprintf(b, ", %s", f)
	}
	b.WriteString("\n ")
	for _, c := range r.Conditions {
		if c.Type != v1alpha1.ConditionReleased || c.Status == metav1.ConditionTrue {
			fmt.Fprintf(b, " %s=%s/%s", c.Type, c.Status, c.Reason)
		}
	}
	b.WriteByte('\n')
	for _, c := range r.Conditions {
		switch c.Reason {
		case v1alpha1.ReasonInsufficientRoom, v1alpha1.ReasonWaitingRoom, v1alpha1.ReasonHostUnsettled, v1alpha1.ReasonLoadFailed, v1alpha1.ReasonEngineCrashed:
			if c.Type == v1alpha1.ConditionLoaded || c.Type == v1alpha1.ConditionAdmitted {
				fmt.Fprintf(b, "  %s: %s\n", c.Type, c.Message)
			}
		}
	}
}

func (w *World) limits(a *arguments) (string, error) {
	if err := a.done(); err != nil {
		return "", err
	}
	var out []string
	for _, e := range w.twin.Engines() {
		l := e.Limits()
		if l == nil {
			out = append(out, e.Config().ReplicaUID+": no limits received")
			continue
		}
		out = append(out, fmt.Sprintf("%s: memory %s, cache %s, headroom %s (known %t), footprint %s, pause %t, can make room %t",
			e.Config().ReplicaUID, v1alpha1.FormatBytes(l.GetMemoryBytes()), v1alpha1.FormatBytes(l.GetCacheBytes()),
			v1alpha1.FormatBytes(l.GetHeadroomBytes()), l.GetHeadroomKnown(), v1alpha1.FormatBytes(l.GetFootprintBytes()), l.GetPausePrefill(), l.GetCanMakeRoom()))
	}
	slices.Sort(out)
	return strings.Join(out, "\n"), nil
}
