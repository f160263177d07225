//go:build !race

package onemac

import (
	"encoding/json"
	"reflect"
	"slices"
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
	if d := cmp.Diff(Settings{"unschedulable": nil, "class": nil, "memory.policy": nil, "memory.ceiling": nil, "settings.logLevel": nil, "settings.cacheLimit": nil, "settings.cacheFree": nil,
		"settings.downloadRate": nil, "settings.giveRate": nil, "settings.hubEndpoint": nil, "settings.modelRoot": nil, "settings.allowedSourceCIDRs": nil, "settings.diskMarks": nil, "settings.quietHours": nil}, Read(m)); d != "" {
		t.Errorf("of a Mac without settings: %s", d)
	}
	m.Spec = v1alpha1.MacNodeSpec{
		Unschedulable: true, Class: "studio",
		Memory: v1alpha1.MacMemoryPolicy{Policy: v1alpha1.MemorySafe, Ceiling: ptr.To(resource.MustParse("96Gi"))},
		Settings: v1alpha1.AgentSettings{LogLevel: v1alpha1.LogDebug, CacheFree: ptr.To(resource.MustParse("0")), AllowedSourceCIDRs: []string{}, ModelRoot: "/m",
			DownloadRate: ptr.To(resource.MustParse("50M")), DiskMarks: &v1alpha1.DiskMarks{HighPercent: 80, LowPercent: 70},
			QuietHours: &v1alpha1.QuietHours{Hours: v1alpha1.Hours{Start: "09:00", End: "18:00"}, DownloadRate: resource.MustParse("5M")}},
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
	want := `{"spec":{"class":"studio","memory":{"ceiling":"96Gi","policy":"Safe"},"settings":{"allowedSourceCIDRs":[],"cacheFree":"0","cacheLimit":null,"diskMarks":{"highPercent":80,"lowPercent":70},` +
		`"downloadRate":"50M","giveRate":null,"hubEndpoint":null,"logLevel":"Debug","modelRoot":"/m","quietHours":{"days":null,"downloadRate":"5M","end":"18:00","start":"09:00","timeZone":null}},"unschedulable":true}}`
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
	fields := map[string]bool{}
	for f := range reflect.TypeFor[v1alpha1.AgentSettings]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = true
	}
	named := 0
	for _, name := range Names() {
		if field, is := strings.CutPrefix(name, "settings."); is {
			if named++; !fields[field] {
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
		"loglevel=Debug":                         `unknown setting "loglevel"; valid settings are class, memory.ceiling`,
		"settings.logLevel=Trace":                `settings.logLevel is "Trace", want Info, Debug`,
		"settings.cacheLimit=0":                  `settings.cacheLimit is "0", want a quantity of at least 1`,
		"settings.cacheFree=-1":                  `settings.cacheFree is "-1", want a quantity of at least 0`,
		"memory.ceiling=lots":                    `memory.ceiling is "lots"`,
		"memory.policy=Wild":                     `memory.policy is "Wild"`,
		"unschedulable=yes":                      `unschedulable is "yes", want true, false`,
		"settings.logLevel":                      "want NAME=VALUE",
		"settings.logLevel=":                     "want NAME=VALUE",
		"unschedulable.deeper=true":              "unknown setting",
		"settings.downloadRate=1Ki":              `settings.downloadRate is "1Ki", want a quantity of at least 65536 bytes`,
		"settings.allowedSourceCIDRs=10.0.0.0/8": `want JSON such as ["10.20.0.0/16"]`,
		`settings.diskMarks={"high":90}`:         `want JSON such as {"highPercent":90,"lowPercent":85}`,
		`settings.diskMarks={} {}`:               "want JSON such as",
		"settings.quietHours=09:00-18:00":        `want JSON such as {"start":"09:00"`,
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

// Fields of an object that its value leaves out are removed: a list that lacks one keeps it.
func TestEveryFieldOfAnObjectIsNamed(t *testing.T) {
	names := func(of reflect.Type) (out []string) {
		for _, f := range reflect.VisibleFields(of) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				out = append(out, name)
			}
		}
		return out
	}
	for name, of := range map[string]reflect.Type{"settings.diskMarks": reflect.TypeFor[v1alpha1.DiskMarks](), "settings.quietHours": reflect.TypeFor[v1alpha1.QuietHours]()} {
		if got, want := settings[name].fields, names(of); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%s has the fields %v, want %v", name, got, want)
		}
	}
}
