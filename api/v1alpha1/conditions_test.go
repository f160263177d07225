//go:build !race

package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// writer is who writes a condition.
type writer string

const (
	operator     writer = "operator"
	agentOfMac   writer = "agent, on its MacNode"
	agentOfOrder writer = "agent, on an assignment"
	policies            = "../../config/rbac"
	policyFile          = "agents.yaml"
)

// writers has a row for each condition that this package declares. A new one
// gets its row here, its line in the comment of conditions.go, and, if it is an
// agent's, its word in the admission policies of config/rbac/agents.yaml.
var writers = map[string]writer{
	ConditionReady:           operator,
	ConditionAvailable:       operator,
	ConditionReconciling:     operator,
	ConditionStalled:         operator,
	ConditionAccepted:        operator,
	ConditionFits:            operator,
	ConditionPlaced:          operator,
	ConditionProgressing:     operator,
	ConditionDegraded:        operator,
	ConditionRouted:          operator,
	ConditionPrefetched:      operator,
	ConditionAgentCurrent:    operator,
	ConditionIdentityClash:   operator,
	ConditionReachable:       operator,
	ConditionEvicting:        operator,
	ConditionClassApplied:    operator,
	ConditionApplied:         operator,
	ConditionWritesSuspended: operator,
	// The operator copies these five to the replica.
	ConditionDownloaded: agentOfOrder,
	ConditionAdmitted:   agentOfOrder,
	ConditionLoaded:     agentOfOrder,
	ConditionServing:    agentOfOrder,
	ConditionReleased:   agentOfOrder,

	ConditionAccepting:      agentOfMac,
	ConditionMemoryPressure: agentOfMac,
	ConditionWiredStranded:  agentOfMac,
	ConditionMemoryDiverged: agentOfMac,
	ConditionGuardInactive:  agentOfMac,
}

// declared are the values of the constants called Condition..., wherever they
// stand in this package.
func declared(t *testing.T) []string {
	t.Helper()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for k, name := range spec.Names {
				if !strings.HasPrefix(name.Name, "Condition") {
					continue
				}
				if k >= len(spec.Values) {
					t.Fatalf("%s has no value of its own", name.Name)
				}
				value, err := strconv.Unquote(spec.Values[k].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, value)
			}
			return true
		})
	}
	slices.Sort(out)
	return out
}

func TestEachConditionHasOneWriter(t *testing.T) {
	have := declared(t)
	if want := slices.Sorted(maps.Keys(writers)); !slices.Equal(have, want) {
		t.Errorf("declared are %v, and the table of writers has %v", have, want)
	}
}

// TestTheAdmissionPolicyKnowsTheConditionsOfAgents: what it lists is what an
// agent may write, so a condition that it lacks could not be written, and one
// too many would let an agent write what is the operator's.
func TestTheAdmissionPolicyKnowsTheConditionsOfAgents(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(policies, policyFile))
	if err != nil {
		t.Fatal(err)
	}
	for variable, who := range map[string]writer{"own": agentOfMac, "stages": agentOfOrder} {
		m := regexp.MustCompile(`- name: ` + variable + `\n +expression: "\[([^\]]*)\]"`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s has no list %s", policyFile, variable)
		}
		var listed, want []string
		for _, word := range strings.Split(string(m[1]), ",") {
			listed = append(listed, strings.Trim(word, " '"))
		}
		for condition, w := range writers {
			if w == who {
				want = append(want, condition)
			}
		}
		slices.Sort(listed)
		slices.Sort(want)
		if !slices.Equal(listed, want) {
			t.Errorf("%s: %s lists %v, want %v", policyFile, variable, listed, want)
		}
	}
}
