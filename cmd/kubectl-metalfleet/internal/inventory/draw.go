package inventory

import (
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// Table writes one line for each Mac.
func Table(to io.Writer, macs []Mac, now time.Time) error {
	var t picture.Table
	t.Row("NAME", "READY", "CHIP", "MEMORY", "CEILING", "RESERVED", "USED", "FREED", "MODELS", "AGENT", "AGE")
	for i := range macs {
		m := &macs[i]
		cells := []string{m.Name, m.ready(), m.Chip}
		cells = append(cells, m.figures()...)
		t.Row(append(cells, fmt.Sprintf("%d/%d", m.loaded(), len(m.Engines)), m.AgentVersion, picture.Age(m.CreatedAt.Time, now))...)
	}
	return t.Write(to)
}

// ready is the word of the column READY, as kubectl writes it of nodes.
func (m *Mac) ready() string {
	if m.Unschedulable {
		return string(m.Ready) + ",cordoned"
	}
	return string(m.Ready)
}

// figures of MEMORY, CEILING, RESERVED, USED and FREED.
func (m *Mac) figures() []string {
	if m.Memory == nil {
		return []string{"", "", "", "", ""}
	}
	var out []string
	for _, n := range []int64{m.Memory.TotalBytes, m.Memory.CeilingBytes, m.Memory.ReservedBytes, m.Memory.UsedBytes, m.Memory.FreedBytes} {
		out = append(out, v1alpha1.FormatBytes(n))
	}
	return out
}

// barWidth is how many signs a bar has.
const barWidth = 30

// Bars draws a Mac: its memory as bars, and below it its engines.
func Bars(to io.Writer, m *Mac, ink picture.Ink) error {
	if _, err := fmt.Fprintln(to, m.title(ink)); err != nil {
		return err
	}
	if m.Memory == nil {
		_, err := fmt.Fprintln(to, "  memory is unknown: the Mac has not reported yet")
		return err
	}
	t := picture.Table{Indent: "  "}
	for _, x := range []struct {
		name  string
		bytes int64
		what  string
	}{
		{"ceiling", m.Memory.CeilingBytes, "maximum for all engines, of " + v1alpha1.FormatBytes(m.Memory.TotalBytes) + " of memory"},
		{"reserved", m.Memory.ReservedBytes, "reserved for models (an estimate)"},
		{"used", m.Memory.UsedBytes, "footprint of all engines (measured)"},
	} {
		t.Row(x.name, v1alpha1.FormatBytes(x.bytes), picture.Bar(x.bytes, m.Memory.TotalBytes, barWidth), x.what)
	}
	t.Row("freed", v1alpha1.FormatBytes(m.Memory.FreedBytes), "freed so far (measured)")
	if err := t.Write(to); err != nil {
		return err
	}
	return m.engines(to)
}

func (m *Mac) title(ink picture.Ink) string {
	state := ink.Good("ready")
	if m.Ready != metav1.ConditionTrue {
		state = ink.Bad("not ready")
		if m.Reason != "" {
			state += " (" + picture.Plain(m.Reason) + ")"
		}
	}
	if m.Unschedulable {
		state += ", " + ink.Warn("cordoned")
	}
	if m.Pressure != "" && m.Pressure != v1alpha1.PressureNormal {
		state += ", " + ink.Warn("memory pressure "+picture.Plain(string(m.Pressure)))
	}
	title := m.Name
	if m.Chip != "" {
		title += "  " + picture.Plain(m.Chip)
	}
	return title + "  " + state
}

func (m *Mac) engines(to io.Writer) error {
	if len(m.Engines) == 0 {
		_, err := fmt.Fprintln(to, "  no engines")
		return err
	}
	t := picture.Table{Indent: "  "}
	t.Row("MODEL", "REPLICA", "STAGE", "FOOTPRINT", "LIMIT", "USE")
	for _, e := range m.Engines {
		footprint, limit, bar := "", "", ""
		if e.FootprintBytes > 0 {
			footprint = v1alpha1.FormatBytes(e.FootprintBytes)
		}
		if e.LimitBytes > 0 {
			limit = v1alpha1.FormatBytes(e.LimitBytes)
		}
		if e.FootprintBytes > 0 && e.LimitBytes > 0 {
			bar = picture.Bar(e.FootprintBytes, e.LimitBytes, barWidth/2)
		}
		t.Row(e.Namespace+"/"+e.Deployment, e.Replica, e.stage(), footprint, limit, bar)
	}
	return t.Write(to)
}

func (e *Engine) stage() string {
	if e.Draining {
		return "draining"
	}
	if e.Progress != "" {
		return e.Progress
	}
	return string(e.Stage)
}
