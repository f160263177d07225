//go:build !race

package system

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// The Macs of TestTheWholeSystem, small to large.
const (
	small  = "small"
	middle = "middle"
	large  = "large"
)

// suite is the fleet of TestTheWholeSystem.
type suite struct {
	*world
	remote *webModel
	hub    *hubtest.Hub
	slow   *v1alpha1.ModelDeployment
}

// TestTheWholeSystem is one story on one fleet. Parts that disturb one another
// follow one another; the others run at once.
func TestTheWholeSystem(t *testing.T) {
	s := startSuite(t)
	t.Run("at once", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"a source that does not exist":        s.sourceMissing,
			"a source outside the model root":     s.sourceOutside,
			"a truncated file":                    s.sourceTruncated,
			"a file with another digest":          s.sourceOfAnotherDigest,
			"a source on a private host":          s.sourceOfAPrivateHost,
			"a model that is too large":           s.tooLarge,
			"a served name that is taken":         s.nameConflict,
			"a download that breaks off":          s.download,
			"a download with another digest":      s.downloadOfAnotherDigest,
			"a repository of a hub":               s.repositoryOfAHub,
			"an encoder of a hub":                 s.encoderOfAHub,
			"unknown fields and impossible sizes": s.refusedByTheAPI,
			"requests that cannot be answered":    s.badRequests,
			"a namespace is deleted":              s.namespaceDeleted,
			"a model is deleted":                  s.deleted,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	s.slow = s.deploy(t, fleet.Model{Name: "slow", File: "slow.gguf", MaxTokens: slowContext, Chips: []string{"M4Max", "M2Ultra"}}, replicas(2))
	s.waitReady(t, s.slow, 2)
	t.Run("an answer, whole and streamed", s.answers)
	t.Run("two sessions of a coding agent", s.twoSessions)
	t.Run("an engine is killed", s.engineKilled)
	t.Run("an agent is killed", s.agentKilled)
	t.Run("a Mac that no gateway reaches", s.unreachable)
	t.Run("a Mac is dead", s.deadMac) // small is gone from here on
	t.Run("dashboards and alerts", s.dashboards)
	t.Run("operator and API server are away", s.outage)
}

func startSuite(t *testing.T) *suite {
	t.Helper()
	s := &suite{remote: newWebModel(t, slow(3)), hub: &hubtest.Hub{}}
	s.remote.breakOnce()
	hub := httptest.NewTLSServer(s.hub)
	t.Cleanup(hub.Close)
	flags := []string{"--hub-endpoint=" + hub.URL}
	s.world = start(t, fleet.Options{Say: func(step string) { t.Log("start:", step) }, Macs: []fleet.Mac{
		{Name: small, Chip: "M4", Memory: "16Gi", Flags: flags},
		{Name: middle, Chip: "M4Max", Memory: "64Gi", Flags: flags},
		{Name: large, Chip: "M2Ultra", Memory: "192Gi", Flags: flags},
	}}, models())
	// One file is cut in half, and one is a link out of the model root.
	whole, err := os.ReadFile(s.file("slow.gguf"))
	must(t, err)
	outside := filepath.Join(s.scratch, "secret.gguf")
	must(t, os.WriteFile(s.file("cut.gguf"), whole[:len(whole)/2], 0o644))
	must(t, os.WriteFile(outside, whole, 0o644))
	must(t, os.Symlink(outside, s.file("link.gguf")))
	return s
}

// dashboards wants the programs to expose every series that the chart's alerts
// and dashboards select. What they make of the series is charts/prometheus' to
// test.
func (s *suite) dashboards(t *testing.T) {
	exposed := map[string][]map[string]string{} // label sets by name
	for _, url := range []string{s.FirstGateway().MetricsURL(), s.FirstGateway().MetricsURL() + "/macs", s.Operator.Metrics} {
		families, err := fleet.Metrics(t.Context(), url)
		must(t, err)
		for name, family := range families {
			for _, m := range family.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				exposed[name] = append(exposed[name], labels)
			}
		}
	}
	folder := filepath.Join(root, "charts", "metalfleet", "files")
	files, err := filepath.Glob(filepath.Join(folder, "dashboards", "*.json"))
	must(t, err)
	selector, matcher := regexp.MustCompile(`(metalfleet_\w+?)(?:_bucket)?(\{[^}]*\}|\b)`), regexp.MustCompile(`(\w+)="([^"]*)"`)
	found := 0
	for _, file := range append(files, filepath.Join(folder, "rules.yaml")) {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range selector.FindAllStringSubmatch(strings.ReplaceAll(string(text), `\"`, `"`), -1) {
			found++
			if !anySet(exposed[m[1]], matcher.FindAllStringSubmatch(m[2], -1)) {
				t.Errorf("%s selects %s, and the programs expose %s with %v", file, m[0], m[1], exposed[m[1]])
			}
		}
	}
	if found < 10 {
		t.Errorf("%d selectors found in %s: were they read?", found, folder)
	}
}

// anySet reports whether one of the label sets has all labels of a selector.
func anySet(sets []map[string]string, selected [][]string) bool {
	return slices.ContainsFunc(sets, func(set map[string]string) bool {
		for _, l := range selected {
			if set[l[1]] != l[2] {
				return false
			}
		}
		return true
	})
}
