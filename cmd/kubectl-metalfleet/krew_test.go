//go:build !race

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// krewPlugin is the schema of a plugin as krew documents it (v1alpha2).
type krewPlugin struct {
	APIVersion string                `json:"apiVersion"`
	Kind       string                `json:"kind"`
	Metadata   struct{ Name string } `json:"metadata"`
	Spec       struct {
		Version          string         `json:"version"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description,omitempty"`
		Caveats          string         `json:"caveats,omitempty"`
		Homepage         string         `json:"homepage,omitempty"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewPlatform struct {
	URI      string                `json:"uri"`
	SHA256   string                `json:"sha256"`
	Selector *metav1.LabelSelector `json:"selector"`
	Files    []krewFile            `json:"files"`
	Bin      string                `json:"bin"`
}

type krewFile struct {
	From string `json:"from"`
	To   string `json:"to,omitempty"`
}

// filled is the manifest as a release fills it.
func filled(t *testing.T) krewPlugin {
	t.Helper()
	b, err := os.ReadFile("../../config/krew/metalfleet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("<VERSION>", "v1.2.3", "<ARCHIVES>", "https://example.org/r", "<HOMEPAGE>", "https://example.org").Replace(string(b))
	text = regexp.MustCompile("<SHA256_[A-Z0-9_]+>").ReplaceAllString(text, strings.Repeat("0f", 32))
	if _, manifest, ok := strings.Cut(text, "\napiVersion:"); !ok || strings.Contains(manifest, "<") {
		t.Fatalf("a word in angle brackets is left:\n%s", text)
	}
	var p krewPlugin
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatalf("not krew's schema: %v", err)
	}
	return p
}

// The rules are those of krew's own validation: names, a version with a v, a
// digest, and files that go where they are looked for.
func TestTheKrewManifestIsValid(t *testing.T) {
	p := filled(t)
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "metalfleet" {
		t.Errorf("it is a %s %s called %q", p.APIVersion, p.Kind, p.Metadata.Name)
	}
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+`).MatchString(p.Spec.Version) || strings.ContainsAny(p.Spec.ShortDescription, "\r\n") || p.Spec.ShortDescription == "" {
		t.Errorf("version %q, short description %q", p.Spec.Version, p.Spec.ShortDescription)
	}
	var systems []string
	for _, x := range p.Spec.Platforms {
		selector, err := metav1.LabelSelectorAsSelector(x.Selector)
		if err != nil || selector.Empty() || !regexp.MustCompile("^[a-f0-9]{64}$").MatchString(x.SHA256) || !strings.HasSuffix(x.URI, ".tar.gz") || x.Bin != "kubectl-metalfleet" {
			t.Errorf("platform %+v (%v)", x, err)
		}
		if !slices.Contains(x.Files, krewFile{From: x.Bin, To: "."}) {
			t.Errorf("%s: its program is not among its files", x.URI)
		}
		for _, system := range []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"} {
			name, arch, _ := strings.Cut(system, "/")
			if selector.Matches(labels.Set{"os": name, "arch": arch}) {
				systems = append(systems, system)
				if !strings.Contains(x.URI, fmt.Sprintf("_%s_%s.", name, arch)) {
					t.Errorf("%s gets %s", system, x.URI)
				}
			}
		}
	}
	slices.Sort(systems)
	if want := []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"}; !slices.Equal(systems, want) {
		t.Errorf("platforms %q, want each of %q once", systems, want)
	}
}
