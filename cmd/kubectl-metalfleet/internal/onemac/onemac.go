// Package onemac reports the state and the settings of one Mac.
//
// It owns the figures of `status` and the names of `settings`, as pure functions
// over a MacNode and its MacAssignment. An unknown setting is refused by name, and an unmeasured figure
// is never shown as zero.
//
// Start reading at Of for the status, Parse for the settings.
package onemac

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// Status is what a Mac does, as it last said. Sizes are bytes.
type Status struct {
	Mac      string                 `json:"mac"`
	Hardware Hardware               `json:"hardware"`
	Pressure v1alpha1.PressureLevel `json:"pressure,omitempty"`
	// Loaded of Models hold their model in memory, in WeightsBytes.
	Loaded       int   `json:"loaded"`
	Models       int   `json:"models"`
	WeightsBytes int64 `json:"weightsBytes"`
	// Running and Queued are sums over the engines that say so.
	Running  int64                    `json:"running"`
	Queued   int64                    `json:"queued"`
	Memory   *v1alpha1.MacMemory      `json:"memory,omitempty"`
	Cache    v1alpha1.MacCache        `json:"cache"`
	Settings v1alpha1.SettingsInForce `json:"settings"`
	Cleared  *v1alpha1.CacheCleared   `json:"cacheCleared,omitempty"`
	Engines  []Engine                 `json:"engines"`
}

// Hardware of a Mac.
type Hardware struct {
	Chip         string `json:"chip,omitempty"`
	Backend      string `json:"backend,omitempty"`
	Simulated    bool   `json:"simulated,omitempty"`
	ThermalState string `json:"thermalState,omitempty"`
}

// Engine is one replica there.
type Engine struct {
	// Replica is NAMESPACE/NAME, or its UID where nothing names it any more.
	Replica string                `json:"replica"`
	Stage   v1alpha1.Stage        `json:"stage,omitempty"`
	Memory  v1alpha1.EngineMemory `json:"memory"`
	// Activity is absent while no engine runs.
	Activity *v1alpha1.EngineActivity `json:"activity,omitempty"`
}

// Of reads a MacNode, and the names of its replicas in what is assigned to it.
func Of(m *v1alpha1.MacNode, assigned *v1alpha1.MacAssignment) Status {
	s := Status{
		Mac: m.Name, Pressure: m.Status.Memory.PressureLevel, Models: len(m.Status.Assignments), Engines: []Engine{},
		Hardware: Hardware{m.Status.Chip, m.Status.Backend, m.Status.Simulated, m.Status.Memory.ThermalState},
		Cache:    m.Status.Disk.Cache, Settings: m.Status.Settings, Cleared: m.Status.CacheCleared,
	}
	if m.Status.Memory.TotalBytes > 0 {
		s.Memory = &m.Status.Memory
	}
	names := map[string]string{}
	for _, a := range assigned.Spec.Assignments {
		names[a.ReplicaUID] = a.Namespace + "/" + a.Name
	}
	for i := range m.Status.Assignments {
		a := &m.Status.Assignments[i]
		if meta.IsStatusConditionTrue(a.Conditions, v1alpha1.ConditionLoaded) {
			s.Loaded++
		}
		s.WeightsBytes += a.Memory.WeightsBytes
		if a.Activity != nil {
			s.Running, s.Queued = s.Running+a.Activity.Running, s.Queued+a.Activity.Queued
		}
		s.Engines = append(s.Engines, Engine{cmp.Or(names[a.ReplicaUID], a.ReplicaUID), a.Progress.Stage, a.Memory, a.Activity})
	}
	slices.SortFunc(s.Engines, func(a, b Engine) int { return cmp.Compare(a.Replica, b.Replica) })
	return s
}

// Write draws it for a person.
func (s *Status) Write(to io.Writer) error {
	if s.Memory == nil {
		_, err := fmt.Fprintf(to, "Mac %s has not reported yet; its agent must join first\n", picture.Plain(s.Mac))
		return err
	}
	var t picture.Table
	t.Row("Mac", s.Mac)
	t.Row("Hardware", s.Hardware.words(), v1alpha1.FormatBytes(s.Memory.TotalBytes))
	t.Row("Memory", "pressure "+string(s.Pressure), fmt.Sprintf("ceiling %s, used %s, live arrays %s, pooled %s", v1alpha1.FormatBytes(s.Memory.CeilingBytes),
		v1alpha1.FormatBytes(s.Memory.FootprintBytes), v1alpha1.FormatBytes(s.Memory.ActiveBytes), v1alpha1.FormatBytes(s.Memory.PooledBytes)))
	t.Row("Models", fmt.Sprintf("%d of %d loaded", s.Loaded, s.Models), "weights "+v1alpha1.FormatBytes(s.WeightsBytes))
	t.Row("Requests", fmt.Sprintf("%d running", s.Running), fmt.Sprintf("%d waiting", s.Queued))
	holds, most := s.cache()
	t.Row("Disk cache", holds, most)
	t.Row("Log", string(s.Settings.LogLevel))
	for _, said := range []struct{ what, why string }{{"Rejected settings", s.Settings.Message}, {"Cache error", s.Cache.Message}} {
		if said.why != "" {
			t.Row(said.what, said.why)
		}
	}
	if err := t.Write(to); err != nil || len(s.Engines) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(to); err != nil {
		return err
	}
	return s.engines(to)
}

func (s *Status) engines(to io.Writer) error {
	var t picture.Table
	t.Row("REPLICA", "STAGE", "WEIGHTS", "FOOTPRINT", "RUNNING", "WAITING", "PROMPT CACHE", "TOKENS IN", "TOKENS OUT")
	for _, e := range s.Engines {
		cells := []string{e.Replica, string(e.Stage), measured(e.Memory.WeightsBytes), measured(e.Memory.FootprintBytes)}
		if a := e.Activity; a != nil {
			cells = append(cells, number(a.Running), number(a.Queued), v1alpha1.FormatBytes(a.CacheBytes), number(a.PromptTokensTotal), number(a.GeneratedTokensTotal))
		} else {
			cells = append(cells, "", "", "", "", "")
		}
		t.Row(cells...)
	}
	return t.Write(to)
}

// measured is a size that is never 0 where there is one.
func measured(n int64) string {
	if n == 0 {
		return ""
	}
	return v1alpha1.FormatBytes(n)
}

// cache on the disk, in words.
func (s *Status) cache() (holds, most string) {
	if s.Cache.Bytes == 0 && s.Cache.LimitBytes == 0 {
		return "", "none"
	}
	return v1alpha1.FormatBytes(s.Cache.Bytes), "limit " + v1alpha1.FormatBytes(s.Cache.LimitBytes)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func (h Hardware) words() string {
	words := []string{cmp.Or(h.Chip, "unknown chip")}
	if h.Backend != "" {
		words = append(words, "back end "+h.Backend)
	}
	if h.Simulated {
		words = append(words, "simulated")
	}
	if h.ThermalState != "" {
		words = append(words, "thermal state "+h.ThermalState)
	}
	return strings.Join(words, ", ")
}
