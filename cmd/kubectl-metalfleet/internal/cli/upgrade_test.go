package cli

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestEachChangeOfTheVersionIsANewAttempt(t *testing.T) {
	digest := strings.Repeat("a", 64)
	named := v1alpha1.AgentRelease{Version: "v0.4.0", Source: "https://releases.example.com/a.tar.gz", SHA256: digest}
	before := named
	before.RetryGeneration, before.State = 4, v1alpha1.ReleasePaused
	for name, tc := range map[string]struct {
		flags   versionFlags
		before  *v1alpha1.AgentRelease
		attempt int64
		paused  bool
		wrong   string
	}{
		"the first":          {flags: versionFlags{desired: named}, before: nil, attempt: 1, paused: false, wrong: ""},
		"the same again":     {flags: versionFlags{desired: named}, before: &before, attempt: 5, paused: false, wrong: ""},
		"an older version":   {flags: versionFlags{desired: named, downgrade: true}, before: nil, attempt: 1, paused: false, wrong: ""},
		"a pause":            {flags: versionFlags{pause: true}, before: &before, attempt: 4, paused: true, wrong: ""},
		"the end of a pause": {flags: versionFlags{resume: true}, before: &before, attempt: 4, paused: false, wrong: ""},
		"a look":             {flags: versionFlags{status: true}, before: &before, attempt: 4, paused: true, wrong: ""},
		"a pause of nothing": {flags: versionFlags{pause: true}, before: nil, attempt: 0, paused: false, wrong: "requests no agent version"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.flags.apply(tc.before)
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) {
					t.Errorf("%v, want %q", err, tc.wrong)
				}
				return
			}
			if err == nil && (got.Downgrade == v1alpha1.DowngradeAllow) != tc.flags.downgrade {
				t.Errorf("a downgrade is %q", got.Downgrade)
			}
			if err != nil || got.RetryGeneration != tc.attempt || (got.State == v1alpha1.ReleasePaused) != tc.paused || got.Version != "v0.4.0" {
				t.Errorf("%+v, %v; want attempt %d, paused %v", got, err, tc.attempt, tc.paused)
			}
		})
	}
}

func TestUpgradeAgentsWritesTheVersionAndShowsTheMacs(t *testing.T) {
	p := newPerson(t)
	t.Cleanup(func() {
		class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultMacClass}}
		if err := p.c.Delete(context.Background(), class); err != nil {
			t.Error(err)
		}
	})
	digest := strings.Repeat("a", 64)
	code, out, errs := p.run("upgrade-agents", "--version", "v0.4.0", "--url", "https://releases.example.com/a.tar.gz", "--sha256", digest)
	if code != exitOK || !strings.Contains(out, "Requested version: v0.4.0 (attempt 1)") {
		t.Fatalf("%d: %s%s", code, out, errs)
	}
	if code, out, errs = p.run("upgrade-agents", "--pause", "-o", "json"); code != exitOK || !strings.Contains(out, `"state": "Paused"`) {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	if code, out, errs = p.run("upgrade-agents"); code != exitOK || !strings.Contains(out, "attempt 1") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	if code, _, errs := p.run("upgrade-agents", "--version", "v1", "--url", "http://x/a", "--sha256", digest); code == exitOK || !strings.Contains(errs, "release.source must be the https:// URL") {
		t.Errorf("an archive without https: %d: %s", code, errs)
	}
	for _, args := range [][]string{{"--version", "v1"}, {"--mac", "studio"}, {"--pause", "--resume"}} {
		if code, _, errs := p.run(append([]string{"upgrade-agents"}, args...)...); code != exitUsage {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, exitUsage, errs)
		}
	}
}
