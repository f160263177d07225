//go:build !race

package onemac

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// None is null, and a patch has only the settings that were named.
func TestSettingsRoundTrip(t *testing.T) {
	m := &v1alpha1.MacNode{}
	if d := cmp.Diff(Settings{"unschedulable": nil, "memory.policy": nil, "memory.ceiling": nil, "settings.logLevel": nil, "settings.cacheLimit": nil, "settings.cacheFree": nil}, Read(m)); d != "" {
		t.Errorf("of a Mac without settings: %s", d)
	}
	m.Spec = v1alpha1.MacNodeSpec{
		Unschedulable: true,
		Memory:        v1alpha1.MacMemoryPolicy{Policy: v1alpha1.MemorySafe, Ceiling: ptr.To(resource.MustParse("96Gi"))},
		Settings:      v1alpha1.AgentSettings{LogLevel: v1alpha1.LogDebug, CacheFree: ptr.To(resource.MustParse("0"))},
	}
	all := Read(m)
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(all, again); d != "" {
		t.Error(d)
	}
	patch, err := again.Patch()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"spec":{"memory":{"ceiling":"96Gi","policy":"Safe"},"settings":{"cacheFree":"0","cacheLimit":null,"logLevel":"Debug"},"unschedulable":true}}`
	if string(patch) != want {
		t.Errorf("%s, want %s", patch, want)
	}
	one, err := Parse([]string{"memory.ceiling=null"})
	if err != nil {
		t.Fatal(err)
	}
	if patch, err := one.Patch(); err != nil || string(patch) != `{"spec":{"memory":{"ceiling":null}}}` {
		t.Errorf("%s, %v", patch, err)
	}
}

func TestEverySettingHasAName(t *testing.T) {
	b, err := json.Marshal(v1alpha1.AgentSettings{LogLevel: v1alpha1.LogInfo, CacheLimit: &resource.Quantity{}, CacheFree: &resource.Quantity{}})
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, name := range Names() {
		if field, is := strings.CutPrefix(name, "settings."); is {
			if named++; fields[field] == nil {
				t.Errorf("%s is no field", name)
			}
		}
	}
	if named != len(fields) {
		t.Errorf("%d settings have a name, of %v", named, fields)
	}
}

// The error lists the known names.
func TestUnknownSettingIsRefusedByName(t *testing.T) {
	for word, want := range map[string]string{
		"loglevel=Debug":            `unknown setting "loglevel"; valid settings are memory.ceiling`,
		"settings.logLevel=Trace":   `settings.logLevel is "Trace", want Info, Debug`,
		"settings.cacheLimit=0":     `settings.cacheLimit is "0", want a quantity of at least 1`,
		"settings.cacheFree=-1":     `settings.cacheFree is "-1", want a quantity of at least 0`,
		"memory.ceiling=lots":       `memory.ceiling is "lots"`,
		"memory.policy=Wild":        `memory.policy is "Wild"`,
		"unschedulable=yes":         `unschedulable is "yes", want true, false`,
		"settings.logLevel":         "want NAME=VALUE",
		"settings.logLevel=":        "want NAME=VALUE",
		"unschedulable.deeper=true": "unknown setting",
	} {
		if _, err := Parse([]string{word}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", word, err, want)
		}
	}
	if _, err := Parse([]string{"unschedulable=true", "unschedulable=false"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("twice: %v", err)
	}
	for text, want := range map[string]string{
		`{"spec":{}}`:              "settings must be a JSON object",
		`{"identity":"x"}`:         `unknown setting "identity"`,
		`{"unschedulable":true}`:   "settings must be a JSON object",
		`{"memory.policy":"Nice"}`: "memory.policy is",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestMacThatNeverReportedShowsNoZeros(t *testing.T) {
	m := &v1alpha1.MacNode{}
	m.Name = "m1"
	s := Of(m, &v1alpha1.MacAssignment{})
	var b strings.Builder
	if err := s.Write(&b); err != nil || b.String() != "Mac m1 has not reported yet; its agent must join first\n" || s.Memory != nil {
		t.Errorf("%q, %v", b.String(), err)
	}
}
