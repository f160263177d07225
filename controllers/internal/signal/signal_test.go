//go:build !race

package signal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// constants returns the values of the API's constants called Reclaim...
func constants(t *testing.T) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../../api/v1alpha1/assignment_status.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is || !strings.HasPrefix(spec.Names[0].Name, "Reclaim") {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		out[value] = true
		return true
	})
	if len(out) < 10 {
		t.Fatalf("only %d reasons were found in the API", len(out))
	}
	return out
}

func TestFreedBytesBeginAtZeroForEveryReason(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := New(registry, fake.NewClientBuilder().Build())
	if err != nil {
		t.Fatal(err)
	}
	freed := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				if f.GetName() == "metalfleet_operator_freed_bytes_total" {
					out[s.GetLabel()[0].GetValue()] = s.GetCounter().GetValue()
				}
			}
		}
		return out
	}
	before := freed()
	for reason := range constants(t) {
		if value, told := before[reason]; !told || value != 0 {
			t.Errorf("before anything was freed for %s, it has %v with %g bytes, want 0 bytes", reason, told, value)
		}
	}
	bytes := int64(100)
	m.Reclaimed(&v1alpha1.Reclaim{Reason: v1alpha1.ReclaimIdle, FreedBytes: &bytes})
	if after := freed(); after["Idle"] != 100 || len(after) != len(before) {
		t.Errorf("freed are %v", after)
	}
}
